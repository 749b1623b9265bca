"""Shell tasks in real sandboxes: the oracle of every family is rewarded; nothing, and attacks, are not."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.processes.ledger import ProcessLedger
from agentrl.processes.owned import Processes
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.tasks.shell.environment import ShellEnvironment
from agentrl.tasks.shell.families import FAMILIES
from tests.helpers.shell_agents import ATTACKS, judged, oracle

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

    ledger = ProcessLedger(tmp_path / "ledger.sqlite")
    processes = Processes(ledger)
    yield Real(processes)
    assert await processes.end() == 0
    assert await ledger.groups() == []
    ledger.close()


@pytest.mark.parametrize("family", FAMILIES)
async def test_every_family(family: str, environment: ShellEnvironment) -> None:
    name = f"shell/{family}/train/5"
    verdict = await judged(environment, name, oracle(name))
    assert (verdict.status, verdict.score) == ("ok", 1.0), verdict.detail
    for why, command in {"nothing": "", **ATTACKS}.items():
        verdict = await judged(environment, name, command)
        assert (verdict.status, verdict.score) == ("task_failed", 0.0), f"{why}: {verdict.detail}"
