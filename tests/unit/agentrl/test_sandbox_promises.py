"""Every provider keeps the promises of the interface; here before stand-ins for what it drives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentrl.processes import Processes, ProcessLedger
from agentrl.sandbox.interface import Sandbox
from tests.helpers.sandbox_cases import CASES, SPEC, Case
from tests.helpers.sandbox_worlds import WORLDS

pytestmark = pytest.mark.slow


@pytest.fixture(params=WORLDS, ids=lambda world: world.__name__)
async def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sandbox]:
    """Return a sandbox; nothing of it is left in the end."""
    ledger = ProcessLedger(tmp_path / "pool.sqlite")
    processes = Processes(ledger)
    async with request.param(tmp_path) as (provider, left):
        sandbox = await provider.start(SPEC, processes)
        yield sandbox
        await sandbox.stop()
        assert left() == []
        assert await provider.sweep(processes.pool) == 0
    assert await processes.end() == 0
    ledger.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_a_promise_holds(sandbox: Sandbox, case: Case) -> None:
    await case(sandbox)
