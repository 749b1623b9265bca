"""A hundred programs at a time, and the longest gap of the server's event loop meanwhile; owns its server and ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentrl.client import Episode, HttpLeases, episode
from agentrl.protocol import JsonObject
from benchmarks.env_parts.servers import pool_words, started
from benchmarks.env_parts.statistics import milliseconds

CALL: JsonObject = {"line": "sleep 0.2; echo done"}
PATIENT_S = 600.0


async def concurrent_calls(folder: Path, calls: int) -> dict[str, Any]:
    """Run ``calls`` shell lines of 0.2 s at a time, each in a process of its own, and return the server's gaps meanwhile."""
    with started("agentrl.pool", *pool_words(folder / "calls.sqlite", calls + 1, ["Program", "Watch"])) as server:
        async with HttpLeases(server.url) as service, episode(service, "watch") as watch, ready(service, calls) as lent:
            await watch.reset()
            idle_s = 1.0
            await asyncio.sleep(idle_s)
            idle = (await watch.step({})).observation.data
            begun = time.perf_counter()
            took = await asyncio.gather(*(timed_step(each) for each in lent))
            seconds = time.perf_counter() - begun
            busy = (await watch.step({})).observation.data
    return {
        "calls": calls,
        "seconds": round(seconds, 3),
        "call_ms": milliseconds(took),
        "longest_gap_ms": round(float(str(busy["longest_gap_ms"])), 1),
        "longest_gap_idle_ms": round(float(str(idle["longest_gap_ms"])), 1),
    }


@asynccontextmanager
async def ready(service: HttpLeases, count: int, task: str = "program") -> AsyncIterator[list[Episode]]:
    """Lend ``count`` environments and reset them, within the block."""
    async with asyncio.timeout(PATIENT_S):
        contexts = [episode(service, task, ttl_s=PATIENT_S) for _ in range(count)]
        lent = await asyncio.gather(*(context.__aenter__() for context in contexts))
        try:
            await asyncio.gather(*(each.reset() for each in lent))
            yield list(lent)
        finally:
            await asyncio.gather(*(context.__aexit__(None, None, None) for context in contexts))


async def timed_step(lent: Episode) -> float:
    """Return the seconds of one call."""
    begun = time.perf_counter()
    await lent.step(CALL, timeout_s=PATIENT_S)
    return time.perf_counter() - begun
