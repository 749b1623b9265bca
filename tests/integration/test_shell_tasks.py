"""Shell tasks in real sandboxes: the oracle of every family is rewarded; nothing, and attacks, are not."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.environment import Task
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.tasks.shell.environment import ShellEnvironment
from agentrl.tasks.shell.families import FAMILIES
from agentrl.tasks.terminal.environment import TerminalEnvironment
from tests.helpers.long import long_but
from tests.helpers.sandboxes import processes_that_end
from tests.helpers.shell_agents import ATTACKS, BEHIND_WALLS, BROKEN_SNAPSHOTS, MEMORY_OF_NOBODY, judged, oracle

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap: run scripts/setup_bubblewrap.sh"),
]

PROVIDER = Bubblewrap()
"""It proves what it promises once."""


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[ShellEnvironment]:
    """Return an environment whose processes end with the test."""

    class Real(ShellEnvironment):
        provider = PROVIDER

    async with processes_that_end(tmp_path) as processes:
        yield Real(processes)


@pytest.mark.parametrize("family", long_but(FAMILIES, "write_word", "write_filter"))
async def test_every_family(family: str, environment: ShellEnvironment) -> None:
    name = f"shell/{family}/train/5"
    verdict = await judged(environment, name, oracle(name))
    assert (verdict.status, verdict.score) == ("ok", 1.0), verdict.detail
    verdict = await judged(environment, name, "")
    assert (verdict.status, verdict.score) == ("task_failed", 0.0), verdict.detail


@pytest.mark.parametrize("family", long_but(FAMILIES, "write_word", "write_filter"))
async def test_no_attack_scores(family: str, environment: ShellEnvironment) -> None:
    for why, command in {**ATTACKS, **BEHIND_WALLS}.items():
        verdict = await judged(environment, f"shell/{family}/train/5", command)
        assert (verdict.status, verdict.score) == ("task_failed", 0.0), f"{why}: {verdict.detail}"


@pytest.mark.parametrize("why", [*MEMORY_OF_NOBODY, *BROKEN_SNAPSHOTS])
async def test_an_agent_that_breaks_its_sandbox_has_failed(why: str, environment: ShellEnvironment) -> None:
    """Nothing of the pool has, so the task is not played again."""
    if why in MEMORY_OF_NOBODY and "memory" not in PROVIDER.places.parents:
        pytest.skip("no control group bounds memory here")
    verdict = await judged(environment, "shell/sum_column/train/5", {**MEMORY_OF_NOBODY, **BROKEN_SNAPSHOTS}[why])
    assert (verdict.status, verdict.score) == ("task_failed", 0.0), verdict.detail


async def test_a_shell_lives_on_between_calls_in_a_sandbox(environment: ShellEnvironment) -> None:
    class Real(TerminalEnvironment):
        provider = PROVIDER

    terminal, name = Real(environment.processes), "shell/sum_column/train/5"
    try:
        await terminal.reset(Task(name), 0)

        async def run(tool: str, **arguments: Any) -> str:
            return (await terminal.step({"tool": tool, "arguments": arguments})).observation.text

        await run("shell_exec", id="a", command="mkdir -p deep; cd deep; A=7")
        assert await run("shell_exec", id="a", command="pwd; echo $A") == "/work/deep\n7\n"
        assert "still running" in await run("shell_exec", id="b", command="read x; echo got $x", block=False)
        assert await run("shell_write_to_process", id="b", command="it") == "got it\n"
        await run("shell_exec", id="b", command="sleep 1000", block=False)
        await run("shell_exec", id="a", command=f"cd /work; rmdir deep\n{oracle(name)}")
        assert (await terminal.evaluate()).score == 1.0
    finally:
        await terminal.close()
