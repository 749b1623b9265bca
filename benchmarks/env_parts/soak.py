"""A long run of many environments at a time, in rounds, and what grows from round to round while nobody uses the pool.

Guarantees: owns its server and ends it. A figure at rest is taken after all slots and connections are free. Nothing depends
on the machine's speed: growth is counted by episode, from the middle of the run on, since caches fill before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from agentrl.client import HttpLeases, episode
from benchmarks.env_parts.kinds import Kind
from benchmarks.env_parts.load import drained, run
from benchmarks.env_parts.servers import Server, pool_words, started
from benchmarks.env_parts.statistics import milliseconds, slope
from benchmarks.env_parts.traces import Traces

STEPS = 5
ROUNDS = 10
WARM_UP_S = 1.0
FILES_S = 10.0
"""Files stay open for a moment after the last connection."""
MOST_BLOCKS, LEAST_BLOCKS = 1.0, 1000
"""Growth of Python's memory blocks that passes: per episode, and in all. One lease has some hundred."""
MOST_KIB, LEAST_KIB = 2.0, 8192
"""Growth of resident memory that passes, in the same way. The kernel's huge pages are 2 MiB each."""


@dataclass(frozen=True)
class Rest:
    """A pool that nobody uses.

    Attributes:
        leases: that it has granted; all but a few were episodes.
        traces: what it has besides itself.
        open_files: of the pool.
        tasks: of its event loop.
        blocks: of memory that Python has given out, after a collection.
        memory_kib: resident.
    """

    leases: int
    traces: Traces
    open_files: int
    tasks: int
    blocks: int
    memory_kib: int


async def soak(folder: Path, kind: Kind, *, parallel: int, minutes: float) -> dict[str, Any]:
    """Play episodes for ``minutes``, ``parallel`` at a time; return what grew, and whether it `held`."""
    ledger = folder / "soak.sqlite"
    seconds, episodes, took, steps = 60 * minutes / ROUNDS, 0, 0.0, list[float]()
    words = pool_words(ledger, parallel, [kind.environment, "Inside"])
    with started("agentrl.pool", *words, temporary=folder / "soak") as server:

        async def play(for_s: float) -> None:
            nonlocal episodes, took
            async with HttpLeases(server.url) as service:
                record = await run(
                    service, kind.busy_task, [kind.action] * STEPS, parallel=parallel, seconds=for_s, warm_up=0.0
                )
                await drained(service)
            episodes, took = episodes + record.episodes, took + record.seconds
            steps.extend(record.latencies["step"])

        await play(WARM_UP_S)
        episodes, took = 0, 0.0
        rests = [await at_rest(server, ledger, None)]
        for _ in range(ROUNDS):
            await play(seconds)
            rests.append(await at_rest(server, ledger, rests[0].open_files))
        failures = close_failures(server)
        peak_mib = server.peak_memory_mib()
    found = held(rests)
    return {
        "minutes": minutes,
        "parallel": parallel,
        "rounds": ROUNDS,
        "episodes": episodes,
        "episodes_per_s": round(episodes / took, 2),
        "peak_memory_mib": round(peak_mib, 1),
        "at_rest": [asdict(rests[number]) for number in (0, ROUNDS // 2, ROUNDS)],
        **found,
        "close_failures": failures,
        "met": not found["left"] and not found["grew"] and not failures,
        "step_ms": milliseconds(steps) if steps else None,
    }


def held(rests: Sequence[Rest]) -> dict[str, Any]:
    """Return what is left at the end that was not there at the start, and what grows from the middle to the end.

    Args:
        rests: in their order, five or more.

    Returns:
        ``left``: names with the surplus. ``grew``: names of what grew by more than passes. ``blocks_per_episode`` and
        ``memory_kib_per_episode``: slope of the second half, and its standard error.
    """
    first, last, late = rests[0], rests[-1], rests[len(rests) // 2 :]
    ours = asdict(last.traces) | {"open_files": last.open_files, "tasks": last.tasks}
    were = asdict(first.traces) | {"open_files": first.open_files, "tasks": first.tasks}
    episodes = last.leases - late[0].leases
    found: dict[str, Any] = {"left": {name: ours[name] - were[name] for name in ours if ours[name] > were[name]}}
    grew: list[str] = []
    for name, each, least in (("blocks", MOST_BLOCKS, LEAST_BLOCKS), ("memory_kib", MOST_KIB, LEAST_KIB)):
        growth, error = slope([rest.leases for rest in late], [getattr(rest, name) for rest in late])
        found[f"{name}_per_episode"] = {"slope": round(growth, 3), "standard_error": round(error, 3)}
        if growth * episodes > max(least, each * episodes):
            grew.append(name)
    return found | {"grew": grew}


async def at_rest(server: Server, ledger: Path, open_files: int | None) -> Rest:
    """Wait until the connections are closed, for at most `FILES_S`, and look.

    Args:
        server: that nobody uses.
        ledger: of it.
        open_files: of an earlier rest; None: there was none, so the fewest within a second are taken.
    """
    files, begun = server.open_files(), time.perf_counter()
    while files != open_files and time.perf_counter() < begun + (FILES_S if open_files else 1.0):
        await asyncio.sleep(0.1)
        files = min(files, server.open_files())
    traces = Traces.of(server, ledger)
    async with HttpLeases(server.url) as service:
        async with episode(service, "inside") as lent:
            await lent.reset()
            inside = (await lent.step({})).observation.data
        await drained(service)
    return Rest(
        leases_granted(server),
        traces,
        files,
        int(str(inside["tasks"])),
        int(str(inside["blocks"])),
        round(server.memory_mib() * 1024),
    )


def close_failures(server: Server) -> dict[str, int]:
    """Return the failed attempts to close that the server counted, by reason."""
    return {
        sample.labels["reason"]: int(sample.value)
        for sample in samples(server)
        if sample.name == "agentrl_close_failures_total"
    }


def leases_granted(server: Server) -> int:
    """Return the number of leases that the server granted."""
    return int(sum(sample.value for sample in samples(server) if sample.name == "agentrl_leases_granted_total"))


def samples(server: Server) -> list[Sample]:
    """Return the values of the server's metrics."""
    text = httpx.get(f"{server.url}/metrics", trust_env=False).text
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]
