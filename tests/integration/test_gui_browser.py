"""MiniWoB++ in a real, walled Chromium: oracles, all families, attacks on the judge, and a browser that dies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from agentrl.environment import Task
from agentrl.exceptions import InfraError, InvalidError
from agentrl.protocol import JsonObject
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.tasks.gui.dom import elements
from agentrl.tasks.gui.miniwob.environment import MiniWobEnvironment
from agentrl.tasks.gui.miniwob.episode import HIDDEN, SCREEN
from agentrl.tasks.gui.miniwob.oracles import ORACLES, solve
from agentrl.tasks.gui.miniwob.pages import HELD_OUT, families, task_name
from tests.helpers.gui_agents import gui_environment, needs_browser, use

pytestmark = [pytest.mark.integration, needs_browser]
PROVIDER = Bubblewrap()
"""It proves what it promises once."""
MANY = 100
SLOW_SECONDS = 30.0


class Real(MiniWobEnvironment):
    provider = PROVIDER

    async def solved(self, name: str) -> float | None:
        """Return the score of the oracle's episode."""
        family = name.split("/")[1]
        instruction = (await self.reset(Task(name), 0)).text.partition("\n\n")[0].removeprefix("Task: ")
        assert self._page is not None
        found = await elements(self._page, SCREEN, HIDDEN)
        for action in solve(family, instruction, found, self.settings.coordinates):
            await self.step(action)
        return (await self.evaluate()).score


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[Real]:
    async with gui_environment(tmp_path, Real) as made:
        yield made


async def test_oracles_and_the_idle(environment: Real) -> None:
    """On every family with an oracle, held-out ones among them: the oracle is rewarded, doing nothing is not."""
    assert set(HELD_OUT) <= set(ORACLES)
    for number, family in enumerate(ORACLES):
        name = task_name(family, "heldout", number)
        await environment.reset(Task(name), 0)
        verdict = await environment.evaluate()
        assert (verdict.status, verdict.score) == ("task_failed", 0.0), f"{family}: {verdict}"
        assert await environment.solved(name) == 1.0, family


@pytest.mark.parametrize("coordinates", ["absolute", "qwen25"])
async def test_selenium_and_other_coordinates(
    coordinates: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUI_COORDINATE_TYPE", coordinates)
    monkeypatch.setenv("SCREENSHOT_BACKEND", "selenium" if coordinates == "absolute" else "playwright")
    async with gui_environment(tmp_path, Real) as environment:
        for family in ("click_link", "enter_password"):
            assert await environment.solved(task_name(family, "heldout", 1)) == 1.0, family


@pytest.mark.long
async def test_a_hundred_families_open_step_and_score(environment: Real) -> None:
    """Those with an oracle have opened, stepped and scored in `test_oracles_and_the_idle`."""
    chosen = [family for family in families()[:MANY] if family not in ORACLES]
    assert len(set(chosen) | set(ORACLES)) == MANY
    slow: dict[str, float] = {}
    for family in chosen:
        began = time.monotonic()
        seen = await environment.reset(Task(task_name(family, "heldout", 0)), 0)
        assert len(seen.images) == 1
        await environment.step(use("left_click", coordinate=[500, 600]))
        verdict = await environment.evaluate()
        assert verdict.score is not None, family
        if time.monotonic() - began > SLOW_SECONDS:
            slow[family] = time.monotonic() - began
    assert not slow


async def test_a_task_is_its_name_and_a_second_try_does_not_count(environment: Real) -> None:
    """The same name gives the same picture. After a failure the page begins no other problem that could be solved."""
    first = await environment.reset(Task("miniwob/click_test_2/train/3"), 0)
    other = await environment.reset(Task("miniwob/click_test_2/train/4"), 0)
    again = await environment.reset(Task("miniwob/click_test_2/train/3"), 5)
    assert first.images == again.images
    assert first.images != other.images
    assert environment._page is not None
    wrong = {"ONE": "TWO", "TWO": "ONE"}
    found = await elements(environment._page, SCREEN, HIDDEN)
    asked = next(word for word in wrong if word in again.text)
    button = next(each for each in found if each.text.upper() == wrong[asked])
    point = [int(button.x / SCREEN.width * 1000), int(button.y / SCREEN.height * 1000)]
    result = await environment.step(use("double_click", coordinate=point))
    assert result.done
    for x in range(100, 1000, 200):
        for y in range(300, 1000, 200):
            await environment.step(use("left_click", coordinate=[x, y]))
    assert (await environment.evaluate()).score == 0.0


async def test_refusals_leave_the_screen_as_it_was(environment: Real) -> None:
    await environment.reset(Task("miniwob/click_button/train/0"), 0)
    refused: list[JsonObject] = [
        {"text": "I click."},
        use("left_click", coordinate=[1000, 5]),
        use("left_click", element=1),
        use("fly"),
    ]
    for action in refused:
        with pytest.raises(InvalidError):
            await environment.step(action)
    assert (await environment.step(use("terminate", status="success"))).done
    assert (await environment.evaluate()).score == 0.0


async def test_a_browser_that_dies_is_never_judged(environment: Real) -> None:
    await environment.reset(Task("miniwob/click_test/train/0"), 0)
    assert environment._page is not None
    with pytest.raises(InfraError):
        await environment._page.send("Browser.crash")
    with pytest.raises(InfraError):
        await environment.step(use("left_click", coordinate=[5, 5]))
    with pytest.raises(InfraError, match="broken"):
        await environment.evaluate()


async def test_the_browser_is_walled(environment: Real) -> None:
    """Its pages see no file of the machine but the mounted ones, and no network."""
    await environment.reset(Task("miniwob/click_test/train/0"), 0)
    page = environment._page
    assert page is not None
    secret = Path("/root/.bashrc") if Path("/root/.bashrc").exists() else Path(__file__)
    answer = await page.send("Page.navigate", {"url": secret.as_uri()})
    assert "ERR_FILE_NOT_FOUND" in answer.get("errorText", "")
    async with asyncio.timeout(60):
        answer = await page.send("Page.navigate", {"url": "http://127.0.0.1:1/"})
    assert answer.get("errorText")
    verdict = await environment.evaluate()
    assert (verdict.score, verdict.detail) == (0.0, "the agent left the task's page")


def drivers() -> list[psutil.Process]:
    """Return playwright's drivers that this process started."""
    return [each for each in psutil.Process().children() if any("playwright" in word for word in each.cmdline())]


async def test_browsers_share_a_driver_until_it_fails(tmp_path: Path) -> None:
    """A failed one loses the pages that it drives, and the next page has another one. None is left."""
    begun = Task("miniwob/click_test/train/0")
    async with gui_environment(tmp_path / "1", Real) as first, gui_environment(tmp_path / "2", Real) as second:
        await asyncio.gather(first.reset(begun, 0), second.reset(begun, 0))
        (driver,) = drivers()
        await first.close()
        assert drivers() == [driver]
        assert await second.solved(begun.id) == 1.0
        driver.kill()
        with pytest.raises(InfraError):
            await second.evaluate()
        with suppress(InfraError):
            await first.reset(begun, 0)  # it may have met the failed driver
        assert await first.solved(begun.id) == 1.0
        assert driver not in drivers()
    assert drivers() == []
