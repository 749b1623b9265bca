"""What dies in the middle of an episode at a screen: the browser, the sandbox, the pool. Nothing is left, nothing is rewarded.

The episodes are played by the agent loop against a pool, with a policy that follows a script. A lost one is played again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrl.environment import Task
from agentrl.processes import ProcessLedger
from agentrl.protocol import JsonObject, StepResult
from agentrl.rollout import generate as loop
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.tasks.gui.browser import playwright_page
from agentrl.tasks.gui.miniwob.environment import MiniWobEnvironment
from groundwork.network import find_available_port
from lab.testkit.processes import answers, assert_all_gone, title_of
from lab.testkit.waiting import wait_until
from slime.utils.types import Sample
from tests.helpers.agent_stages import END, staged
from tests.helpers.gui_agents import needs_browser
from tests.helpers.killed_servers import Command

pytestmark = [pytest.mark.integration, needs_browser]
PROVIDER = Bubblewrap()
CALL = '<tool_call>\n{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [999, 999]}}\n</tool_call>'


def browsers_of(marker: str) -> Iterator[psutil.Process]:
    """Yield the processes of this test's sandboxes: children of this process that run ``marker``."""
    for process in psutil.Process().children(recursive=True):
        try:
            if marker in " ".join(process.cmdline()):
                yield process
        except psutil.Error:
            continue


@pytest.fixture(autouse=True)
def _a_loss_is_noticed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the answer of what is dead."""
    monkeypatch.setattr(playwright_page, "SEND_S", 3600.0)


class Dying(MiniWobEnvironment):
    """A browser whose first step loses what ``killed`` names, once."""

    provider = PROVIDER
    killed: str = ""
    lost = 0

    @classmethod
    def tasks(cls) -> list[Task]:
        return [Task("miniwob/click_test/train/0")]

    async def step(self, action: JsonObject) -> StepResult:
        if type(self).killed:
            marker, type(self).killed = type(self).killed, ""
            victims = list(browsers_of(marker))
            assert victims, f"nothing runs {marker}"
            for victim in victims:
                with suppress(psutil.NoSuchProcess):  # it ended with the one before
                    victim.kill()
            type(self).lost += 1
        return await super().step(action)


@pytest.mark.parametrize("killed", ["--type=renderer", "--remote-debugging-port", "agentrl.sandbox.inside.supervisor"])
async def test_a_lost_episode_is_played_again(
    killed: str, tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's process, the browser, or its whole sandbox dies before a step."""
    monkeypatch.setenv("GUI_OBSERVATION_TYPE", "a11y_tree")
    kind: Any = type("OwnDying", (Dying,), {"killed": killed, "lost": 0})
    replies = [CALL + END, CALL + END, "I stop." + END]
    async with staged(kind, replies, tmp_path, tiny_random_model, monkeypatch) as on:
        monkeypatch.setenv("AGENTRL_MAX_TURNS", "2")
        (sample,) = await on.play(on.sample("miniwob/click_test/train/0"))
        assert kind.lost == 1
        assert sample.metadata["agent"]["attempts"] == 2, "the lost episode was played again"
        assert sample.reward == -1.0
        assert sample.metadata["agent"]["turns"] == 2
    assert not list(browsers_of("chromium"))


@dataclass
class KilledPool:
    """A pool of browsers as a process; `again` kills it with its family seen gone, and starts another on the same ledger."""

    command: Command
    families: list[list[psutil.Process]] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path) -> KilledPool:
        port = find_available_port()
        kind = f"{MiniWobEnvironment.__module__}.{MiniWobEnvironment.__name__}"
        argv = [sys.executable, "-m", "agentrl.pool", "--env", kind, "--slots", "1", "--port", str(port)]
        argv += ["--ledger", str(folder / "pool-process.sqlite")]
        return cls(Command("pool", argv, dict(os.environ), folder / "pool.log", f"http://127.0.0.1:{port}"))

    def again(self) -> None:
        """Die by SIGKILL and come back."""
        titles = [title_of(process) for process in self.command.family()]
        assert any("chromium" in title for title in titles), "no browser is there to be left behind"
        family = self.command.kill()
        assert_all_gone(family)
        self.families.append(family)
        self.command.launch()
        wait_until(lambda: answers(f"{self.command.url}/healthz"), self.command.said)


async def test_a_killed_pool_takes_its_browser_along(
    short_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool dies before the second action of an episode: no browser is left, and another lease plays the task."""
    monkeypatch.setenv("GUI_OBSERVATION_TYPE", "a11y_tree")
    monkeypatch.setenv("AGENTRL_MAX_TURNS", "2")
    pool, lend = KilledPool.of(short_path), loop.service_of
    await pool.command.start()
    monkeypatch.setenv("AGENTRL_POOL_URL", pool.command.url)
    try:
        async with staged(MiniWobEnvironment, [CALL + END], short_path, tiny_random_model, monkeypatch) as on:
            monkeypatch.setattr(loop, "service_of", lend)
            script = on.policy.script

            def killing(prompt: list[int]) -> Any:
                if len(on.policy.requests) == 2:
                    pool.again()
                return script(prompt)

            on.policy.script = killing
            (sample,) = await on.play(on.sample("miniwob/click_test/train/0"))
            assert len(pool.families) == 1
            agent = sample.metadata["agent"]
            assert (agent["attempts"], agent["turns"]) == (2, 2), "the lost episode was played again"
            assert len(on.policy.requests) == 4
            assert (sample.reward, sum(sample.loss_mask)) == (
                -1.0,
                sum(len(on.tokenizer.encode(CALL + END)) for _ in "12"),
            )
            kinds = on.kinds()
            assert kinds.count("verdict") == 1, "only the episode that was played to its end has a verdict"
    finally:
        pool.command.end()
    assert_all_gone(pool.families[0])
    ledger = ProcessLedger(short_path / "pool-process.sqlite")
    assert await ledger.groups() == []
    ledger.close()


async def test_an_episode_that_is_always_lost_has_no_reward(
    tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUI_OBSERVATION_TYPE", "a11y_tree")
    monkeypatch.setenv("AGENTRL_TRIES", "1")
    kind: Any = type("OwnDying", (Dying,), {"killed": "--remote-debugging-port", "lost": 0})
    async with staged(kind, [CALL + END], tmp_path, tiny_random_model, monkeypatch) as on:
        sample = await on.play(on.sample("miniwob/click_test/train/0"))
        assert sample.status == Sample.Status.ABORTED
        assert sample.reward is None
    assert not list(browsers_of("chromium"))
