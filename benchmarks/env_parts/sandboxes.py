"""Start of a sandbox, and a call in it, beside a plain subprocess, which is the limit."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from agentrl.processes import Processes, ProcessLedger
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.interface import SandboxSpec
from benchmarks.env_parts.environments import MINIMAL
from benchmarks.env_parts.statistics import milliseconds

CALL_SECONDS = 60.0


async def plain_call() -> float:
    """Return the seconds of a plain subprocess."""
    begun = time.perf_counter()
    process = await asyncio.create_subprocess_exec("true", env=MINIMAL)
    await process.wait()
    return time.perf_counter() - begun


async def sandbox_figures(folder: Path, count: int) -> dict[str, Any]:
    """Start ``count`` sandboxes, one after the other, with a call in each; return the times.

    Raises:
        InfraError: this machine cannot isolate, with what to do about it.
    """
    provider, ledger = Bubblewrap(), ProcessLedger(folder / "sandbox.sqlite")
    plain, starts, calls, stops = [await plain_call() for _ in range(count)], [], [], []
    begun = time.perf_counter()
    await provider.check()
    check_s = time.perf_counter() - begun
    try:
        for _ in range(count):
            processes = Processes(ledger)
            times = [time.perf_counter()]
            sandbox = await provider.start(SandboxSpec(), processes)
            times.append(time.perf_counter())
            await sandbox.execute(["true"], timeout_s=CALL_SECONDS)
            times.append(time.perf_counter())
            await sandbox.stop()
            await processes.end()
            times.append(time.perf_counter())
            for figures, first, last in zip((starts, calls, stops), times, times[1:], strict=False):
                figures.append(last - first)
    finally:
        ledger.close()
    return {
        "provider": provider.name,
        "weaker": provider.weaker(),
        "check_s": round(check_s, 2),
        "start_ms": milliseconds(starts),
        "call_ms": milliseconds(calls),
        "stop_ms": milliseconds(stops),
        "plain_ms": milliseconds(plain),
    }
