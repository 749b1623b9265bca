"""What a pool does in hard hours: a hundred calls at a time, a kill in the middle of its work, a long run.

Guarantees: each probe owns its servers and ends them. Leftovers are counted by what only the probe's own processes carry.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from agentrl.client.episode import Episode, episode, new_request_id
from agentrl.client.http import HttpLeases
from agentrl.processes.marks import carriers
from agentrl.protocol import JsonObject, LeaseRequest
from benchmarks.env_parts.load import Record, drained, run
from benchmarks.env_parts.servers import Server, pool_words, started
from benchmarks.env_parts.statistics import milliseconds, quantile, slope

CALL: JsonObject = {"line": "sleep 0.2; echo done"}
PATIENT_S = 600.0
SAMPLES = 120
REST_S = 1.0
"""Files stay open for a moment after the last connection."""


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


async def orphans(folder: Path, environments: int) -> dict[str, Any]:
    """Kill a pool in the middle of ``environments``, start the next one, and count what is left.

    Every environment has a program with a child outside its process group, and a call under way.
    """
    ledger = folder / "orphans.sqlite"
    words = pool_words(ledger, environments, ["Program"])
    with started("agentrl.pool", *words) as server:
        service = HttpLeases(server.url)
        asked = [LeaseRequest(request_id=new_request_id(), task_id="background") for _ in range(environments)]
        lent = [Episode(service, (await service.lease(request)).lease_id) for request in asked]
        await asyncio.gather(*(each.reset() for each in lent))
        under_way = [asyncio.create_task(each.step({"line": "sleep 3602"})) for each in lent]
        await until_running(ledger, environments)
        server.process.kill()
        server.process.wait()
        secrets = {secret for secret, _ in recorded_groups(ledger)}
        before = left_of(ledger, secrets)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await service.close()
    begun = time.perf_counter()
    with started("agentrl.pool", *words):
        restart_s = time.perf_counter() - begun
        after = left_of(ledger, secrets)
    return {
        "environments": environments,
        "before": before,
        "after": after,
        "restart_s": round(restart_s, 2),
        "met": not any(after.values()),
    }


def recorded_groups(ledger: Path) -> list[tuple[str, int]]:
    """Return the owner's secret and the leader of each process group in a ledger that a pool may be using."""
    rows = sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)
    try:
        return rows.execute("SELECT secret, pid FROM groups").fetchall()
    finally:
        rows.close()


async def until_running(ledger: Path, environments: int) -> None:
    """Wait until every environment has its background program, that program's child, and the program of a call."""
    async with asyncio.timeout(PATIENT_S):
        while True:
            groups = recorded_groups(ledger)
            alive = len(list(carriers({secret for secret, _ in groups})))
            if len(groups) == 2 * environments and alive >= 3 * environments:
                return
            await asyncio.sleep(0.05)


def left_of(ledger: Path, secrets: set[str]) -> dict[str, int]:
    """Count the processes that carry one of these secrets, the recorded groups."""
    return {
        "processes": len(list(carriers(secrets))),
        "groups": len(recorded_groups(ledger)),
    }


async def soak(folder: Path, *, parallel: int, minutes: float) -> dict[str, Any]:
    """Play episodes for ``minutes`` and return how processes, files and memory of the server grow, per minute.

    The first fifth is left out: caches fill there. It is met if processes and open files at rest are the same as before.
    """
    seconds = 60 * minutes
    rows: list[tuple[float, float, int, int]] = []
    actions: list[JsonObject] = [{"line": "echo done"}] * 5
    with started("agentrl.pool", *pool_words(folder / "soak.sqlite", parallel, ["Program"])) as server:

        async def sample() -> None:
            begun = time.perf_counter()
            while (now := time.perf_counter() - begun) < seconds:
                rows.append((now / 60, server.memory_mib(), server.open_files(), children(server)))
                await asyncio.sleep(seconds / SAMPLES)

        async def play(for_s: float) -> Record:
            async with HttpLeases(server.url) as service:
                record = await run(service, "background", actions, parallel=parallel, seconds=for_s, warm_up=0.0)
                await drained(service)
            return record

        await play(1.0)
        before = await at_rest(server)
        record, _ = await asyncio.gather(play(seconds), sample())
        after = await at_rest(server)
        failures = close_failures(server)
    late = [row for row in rows if row[0] >= 0.2 * minutes]
    names = ("memory_mib", "open_files", "processes")
    found = {}
    for column, name in enumerate(names, 1):
        values = [row[column] for row in late]
        growth, error = slope([row[0] for row in late], values)
        found[name] = {
            "per_minute": round(growth, 4),
            "standard_error": round(error, 4),
            "median": round(quantile(values, 0.5), 1),
            "most": round(max(values), 1),
        }
    return {
        "minutes": minutes,
        "parallel": parallel,
        "episodes": record.episodes,
        "episodes_per_s": round(record.rate, 2),
        **found,
        "at_rest_before": before,
        "at_rest_after": after,
        "ledger_rows_when_empty": len(recorded_groups(folder / "soak.sqlite")),
        "close_failures": failures,
        "met": after == before and not failures,
        "step_ms": milliseconds(record.latencies["step"]),
    }


async def at_rest(server: Server) -> dict[str, int]:
    """Return processes and files of a server that nobody uses: the least of its open files for a while, and children."""
    files = server.open_files()
    until = time.perf_counter() + REST_S
    while time.perf_counter() < until:
        await asyncio.sleep(REST_S / 10)
        files = min(files, server.open_files())
    return {"processes": children(server), "open_files": files}


def children(server: Server) -> int:
    """Return the number of processes that the server started and that are not gone, zombies included."""
    listed = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    return sum(len(file.read_text().split()) for file in listed)


def close_failures(server: Server) -> int:
    """Return the failed attempts to close that the server counted."""
    text = httpx.get(f"{server.url}/metrics", trust_env=False).text
    lines = (line.split() for line in text.splitlines() if line.startswith("agentrl_close_failures_total"))
    return sum(int(float(words[-1])) for words in lines)
