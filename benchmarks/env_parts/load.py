"""Episodes in parallel: how many a second, and how long each operation took."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from agentrl.client import Episode, new_request_id
from agentrl.protocol import JsonObject, LeaseRequest, LeaseService
from benchmarks.env_parts.servers import Server

T = TypeVar("T")
DRAIN_S = 300.0
OPERATIONS = ("lease", "reset", "step", "evaluate", "release")


@dataclass
class Record:
    """What a run of load took.

    Attributes:
        seconds: of the run, warm-up excepted.
        episodes: that ended within it.
        latencies: seconds of each call, by operation.
        server_s: processor time of each server, in the order given.
        programs_s: processor time of programs that servers ran and that have ended.
        client_s: processor time of this process.
        closing_s: processor time of each server while environments were closed after the last answers of their episodes,
            and after it that of programs; only of runs that settle, and beside ``server_s`` and ``programs_s``.
    """

    seconds: float = 0.0
    episodes: int = 0
    latencies: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in OPERATIONS})
    server_s: list[float] = field(default_factory=list)
    programs_s: float = 0.0
    client_s: float = 0.0
    closing_s: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Return the episodes per second."""
        return self.episodes / self.seconds


async def run(
    service: LeaseService,
    task: str,
    actions: Sequence[JsonObject],
    *,
    parallel: int,
    seconds: float,
    warm_up: float,
    servers: Sequence[Server] = (),
    settles: bool = False,
) -> Record:
    """Play ``parallel`` episodes of ``task`` at a time, each with all ``actions``, again and again.

    On a slow machine the record goes on until an episode has ended and each operation was seen.

    Args:
        service: that lends them.
        task: by its id.
        actions: of every episode.
        parallel: number of episodes at a time.
        seconds: that are recorded, at least.
        warm_up: seconds before them.
        servers: whose processor time is recorded.
        settles: whether an episode begins only when the one before is closed; for one at a time.
    """
    clock, record = time.perf_counter, Record()
    closing = [0.0] * (2 + len(servers))
    opened = clock() + warm_up
    closed = math.inf
    seen = asyncio.Event()

    async def timed(name: str, call: Awaitable[T]) -> T:
        begun = clock()
        answer = await call
        if opened <= (now := clock()) <= closed:
            record.latencies[name].append(now - begun)
        return answer

    def spent() -> list[float]:
        """Return the processor time of this process, of programs, and of each server."""
        programs = sum(server.children_cpu_seconds() for server in servers)
        return [time.process_time(), programs, *(server.cpu_seconds() for server in servers)]

    async def settle() -> None:
        before = spent()
        await drained(service)
        if opened <= clock() <= closed:
            closing[:] = [sum(each) for each in zip(closing, since(before), strict=True)]

    def since(before: list[float]) -> list[float]:
        return [now - was for now, was in zip(spent(), before, strict=True)]

    async def play() -> None:
        while clock() < closed:
            request = LeaseRequest(request_id=new_request_id(), task_id=task)
            lease_id = (await timed("lease", service.lease(request))).lease_id
            episode = Episode(service, lease_id)
            await timed("reset", episode.reset())
            for action in actions:
                await timed("step", episode.step(action))
            await timed("evaluate", episode.evaluate())
            await timed("release", service.release(lease_id))
            record.episodes += opened <= clock() <= closed
            if record.episodes and all(record.latencies.values()):
                seen.set()
            if settles:
                await settle()

    async def watch() -> None:
        nonlocal closed
        await asyncio.sleep(warm_up)
        begun, before = clock(), spent()
        await asyncio.sleep(opened + seconds - clock())
        await seen.wait()
        closed = clock()
        found = [total - aside for total, aside in zip(since(before), closing, strict=True)]
        record.client_s, record.programs_s, *record.server_s = found
        _, programs_s, *servers_s = closing
        record.closing_s = [*servers_s, programs_s]
        record.seconds = clock() - begun

    async with asyncio.TaskGroup() as group:
        for each in (watch(), *(play() for _ in range(parallel))):
            group.create_task(each)
    return record


async def drained(service: LeaseService) -> None:
    """Wait until all slots are free, so that what a run left behind does not disturb the next one.

    Raises:
        TimeoutError: not within `DRAIN_S`.
    """
    async with asyncio.timeout(DRAIN_S):
        while (await service.status()).used:
            await asyncio.sleep(0.05)
