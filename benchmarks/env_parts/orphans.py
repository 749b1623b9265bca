"""A pool is killed in the middle of its work: what is left after the next one's start.

Guarantees: owns its servers and ends them. Every environment has a program, another one outside its process group, and a
call under way when the kill comes.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentrl.client import Episode, HttpLeases, new_request_id
from agentrl.processes import is_alive
from agentrl.protocol import LeaseRequest
from benchmarks.env_parts.kinds import Kind
from benchmarks.env_parts.servers import pool_words, started
from benchmarks.env_parts.traces import Traces, control_groups, marks_below, recorded_groups, sleepers

PATIENT_S = 600.0
SLEEPERS = 3
"""In each environment."""


async def orphans(folder: Path, kind: Kind, environments: int) -> dict[str, Any]:
    """Kill a pool in the middle of ``environments``, start the next one, and count what is left of the first."""
    ledger = folder / "orphans.sqlite"
    temporary = folder / "orphans"
    words = pool_words(ledger, environments, [kind.environment])
    with started("agentrl.pool", *words, temporary=temporary) as server:
        service = HttpLeases(server.url)
        asked = [LeaseRequest(request_id=new_request_id(), task_id=kind.busy_task) for _ in range(environments)]
        lent = [Episode(service, (await service.lease(request)).lease_id) for request in asked]
        await asyncio.gather(*(each.reset() for each in lent))
        for action in kind.begin:
            await asyncio.gather(*(each.step(action) for each in lent))
        under_way = [asyncio.create_task(each.step(kind.sleep)) for each in lent]
        async with asyncio.timeout(PATIENT_S):
            while sleepers(server.process.pid) < SLEEPERS * environments:
                await asyncio.sleep(0.05)
        before, marks = Traces.of(server, ledger), marks_below(server.process.pid)
        server.process.kill()
        server.process.wait()
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await service.close()
    begun = time.perf_counter()
    with started("agentrl.pool", *words, temporary=temporary):
        restart_s = time.perf_counter() - begun
        after = Traces(
            sum(map(is_alive, marks)),
            control_groups(server.process.pid),
            len(list(temporary.iterdir())),
            len(recorded_groups(ledger)),
        )
    return {
        "environments": environments,
        "before": asdict(before),
        "after": asdict(after),
        "restart_s": round(restart_s, 2),
        "met": not any(asdict(after).values()),
    }
