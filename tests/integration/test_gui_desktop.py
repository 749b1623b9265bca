"""The desktop tasks on a real Xvfb in its sandbox: oracles, the idle agent, every character, and a display that dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from agentrl.environment import Task
from agentrl.exceptions import InfraError
from agentrl.protocol import JsonObject, StepResult
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.tasks.gui.coordinates import from_screen
from agentrl.tasks.gui.desktop.environment import DesktopEnvironment
from agentrl.tasks.gui.desktop.oracles import ORACLES, actions
from agentrl.tasks.gui.desktop.screen import SIZE
from agentrl.tasks.gui.desktop.windows import FAMILIES, task_name
from tests.helpers.gui_agents import gui_environment, needs_desktop, use

pytestmark = [pytest.mark.integration, needs_desktop]
PROVIDER = Bubblewrap()
"""It proves what it promises once."""
ASCII = "".join(map(chr, range(32, 127)))


class Real(DesktopEnvironment):
    provider = PROVIDER

    async def solve(self, name: str) -> list[StepResult]:
        """Let the oracle play an episode; return its steps."""
        seen = await self.reset(Task(name), 0)
        assert len(seen.images) == 1
        idle = await self.evaluate()
        assert (idle.status, idle.score) == ("task_failed", 0.0), idle
        assert self.desktop is not None
        oracle = actions(name.split("/")[1], seen.text.removeprefix("Task: "), self.desktop.elements)
        results: list[StepResult] = []
        action: JsonObject | None = next(oracle)
        while action is not None:
            results.append(await self.step(action))
            try:
                action = oracle.send(self.desktop.elements)
            except StopIteration:
                action = None
        return results

    async def type_into(self, name: str, text: str) -> str:
        """Replace the text of a field by mouse and keyboard; return what it then holds."""
        assert self.desktop is not None
        field = next(item for item in self.desktop.elements if item.name == name)
        at = from_screen((field.x, field.y), self.settings.coordinates, SIZE, SIZE)
        for action in (use("left_click", coordinate=at), use("key", keys=["ctrl", "a"]), use("type", text=text)):
            await self.step(action)
        return self.desktop.state["values"][name]  # type: ignore[index, call-overload, return-value]


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[Real]:
    async with gui_environment(tmp_path, Real) as made:
        yield made


async def test_oracles_and_the_idle(environment: Real) -> None:
    """In every family the oracle is rewarded and doing nothing is not; the last step ends the episode, and no other."""
    assert set(ORACLES) == set(FAMILIES)
    for number, family in enumerate(FAMILIES):
        results = await environment.solve(task_name(family, "heldout", number))
        assert [result.done for result in results] == [False] * (len(results) - 1) + [True], family
        assert len({result.observation.images for result in results}) > 1, family
        verdict = await environment.evaluate()
        assert (verdict.status, verdict.score) == ("ok", 1.0), f"{family}: {verdict}"


async def test_every_character_is_typed_and_displays_are_private(tmp_path: Path) -> None:
    """Two desktops at a time: what is typed into one is not seen in the other."""
    name = task_name("write_note", "train", 0)
    async with gui_environment(tmp_path / "1", Real) as first, gui_environment(tmp_path / "2", Real) as second:
        seen = await asyncio.gather(first.reset(Task(name), 0), second.reset(Task(name), 0))
        assert seen[0].images == seen[1].images
        for text in (ASCII, "a\nb", "éß€ñ 日本語 Ж", "😀"):
            assert await first.type_into("Note", text) == text
        assert second.desktop is not None
        before = dict(second.desktop.state)
        result = await second.step(use("wait", time=0))
        assert (second.desktop.state, result.observation.images) == (before, seen[1].images)


async def test_a_display_that_dies_is_never_judged(environment: Real) -> None:
    await environment.reset(Task(task_name("fill_form", "train", 0)), 0)
    assert environment.desktop is not None
    with suppress(InfraError):
        await environment.desktop.ask({"what": "no such order", "point": "nowhere"})
    with pytest.raises(InfraError, match="the desktop is gone"):
        await environment.step(use("left_click", coordinate=[5, 5]))
    with pytest.raises(InfraError, match="broken"):
        await environment.evaluate()
