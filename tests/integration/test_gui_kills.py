"""What dies in the middle of an episode at a screen: the browser, the sandbox, the pool. Nothing is left, nothing is rewarded.

The episodes are played by the agent loop against a pool, with a policy that follows a script. A lost one is played again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrl.environment import Task
from agentrl.protocol import JsonObject, StepResult
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.tasks.gui.miniwob.environment import MiniWobEnvironment
from slime.utils.types import Sample
from tests.helpers.agent_stages import END, staged
from tests.helpers.gui_agents import needs_browser

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
