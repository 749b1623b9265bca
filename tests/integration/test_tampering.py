"""Agents that tamper with the tests that run or import what they wrote, in real sandboxes: none has a reward, and a right program has."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.environment import Task
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.interface import SandboxSpec
from agentrl.tasks.harbor import HarborTask, read_task
from agentrl.tasks.shell.environment import ShellEnvironment
from agentrl.tasks.terminal.tbench import read_tbench
from tests.helpers.sandboxes import processes_that_end
from tests.helpers.shell_agents import judged
from tests.helpers.tampering import PYTEST, TAMPERING, Way, harbor_folder, tbench_folder

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap: run scripts/setup_bubblewrap.sh"),
]

PROVIDER = Bubblewrap()
"""It proves what it promises once."""
FOLDERS: dict[str, Callable[[Path, Way], HarborTask]] = {
    "tbench with pytest": lambda folder, way: read_tbench(tbench_folder(folder, way, prints=False)),
    "tbench that prints": lambda folder, way: read_tbench(tbench_folder(folder, way, prints=True)),
    "harbor": lambda folder, way: read_task(harbor_folder(folder, way)),
}


OF_PYTEST = (
    *("nothing", "reads the test and answers what it wants", "an object that equals everything"),
    *("prints a summary and exits", "makes all reports pass", "leaves failures out", "conftest and plugins"),
)
OF_HARBOR = (
    "wrong",
    "a daemon that rewrites the reward",
    "overwrites the tests and the grader",
    "makes all reports pass",
)
AGENTS = {"tbench with pytest": OF_PYTEST, "tbench that prints": tuple(TAMPERING), "harbor": OF_HARBOR}
"""Pytest takes a second to start, twice for each agent, so not all agents try it."""


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("harbor", "run"),
        ("tbench with pytest", "import"),
        *(
            pytest.param(kind, way, marks=pytest.mark.long)
            for kind, way in (
                *(("harbor", "import"), ("tbench with pytest", "run")),
                *(("tbench that prints", "run"), ("tbench that prints", "import")),
            )
        ),
    ],
)
async def test_no_tampering_agent_scores(kind: str, way: Way, tmp_path: Path) -> None:
    task = FOLDERS[kind](tmp_path / "task", way)

    class Real(ShellEnvironment):
        provider = PROVIDER

        def load(self, task: Task) -> HarborTask:
            return given

        def spec(self) -> SandboxSpec:
            return replace(super().spec(), mounts=PYTEST)

    given = task
    async with processes_that_end(tmp_path) as processes:
        environment = Real(processes)
        right = await judged(environment, "x", task.solution["solve.sh"].data.decode())
        assert (right.status, right.score) == ("ok", 1.0), right.detail
        found = {name: await judged(environment, "x", TAMPERING[name]) for name in AGENTS[kind]}
    assert {name: (each.status, each.score) for name, each in found.items()} == dict.fromkeys(
        AGENTS[kind], ("task_failed", 0.0)
    )
