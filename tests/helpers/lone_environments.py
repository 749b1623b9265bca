"""An environment without a pool, whose processes end with a block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from agentrl.bridges.verifiers import VerifiersEnvironment
from agentrl.processes import Processes, ProcessLedger


@asynccontextmanager
async def lent(kind: type[VerifiersEnvironment], tmp_path: Path) -> AsyncIterator[VerifiersEnvironment]:
    """Make an environment that ends with the block."""
    ledger = ProcessLedger(tmp_path / "ledger.sqlite")
    processes = Processes(ledger)
    try:
        yield kind(processes)
    finally:
        assert await processes.end() == 0
        ledger.close()
