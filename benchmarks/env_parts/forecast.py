"""Episodes a second of several hosts, simulated from recorded latencies of one, and how far the simulation is off.

A call's recorded latency at one environment at a time holds no queueing. It is split by the processor time that was
recorded beside it: the client's share, the router's, the pool's and its programs', and a rest that only delays. Client, router
and each pool are event loops, so each is a station with one server. What runs on a host shares its cores: the pool, its
programs, the closing of environments beside the next episodes, and for one host without a router the client too.

Assumed: hosts are like the recorded one; one client process drives all of them; the network between them adds nothing;
the engine's turns follow the recorded ones of `benchmarks.gateway`, whose engine is a stand-in with a fixed pace, and a
judge takes one such turn per episode. The simulation knows no failures.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.env_parts.load import OPERATIONS, Record
from benchmarks.env_parts.simulation import ASIDE, Outcome, Station, simulate
from benchmarks.env_parts.statistics import quantile

POINTS = 50
"""Quantiles that stand for a recorded distribution."""
ROUNDS_PER_JOB, LEAST_ROUNDS = 6, 600
P99_OF_NORMAL = 2.326
WITH_PROGRAMS = ("reset", "step", "evaluate")
"""Operations that may run programs."""


@dataclass(frozen=True)
class Recorded:
    """Latencies of one environment at a time.

    Attributes:
        latencies: seconds of each operation, as `POINTS` quantiles.
        steps: of an episode.
        client: share of the latency that is processor time of the client; so is ``pool``.
        programs: share of the latency of `WITH_PROGRAMS` that is processor time of programs.
        closing_s: processor time that it takes to close an environment.
        router_s: processor time of a router per call; 0 without one.
        cores: of the host.
    """

    latencies: dict[str, list[float]]
    steps: int
    client: float
    pool: float
    programs: float
    closing_s: float
    router_s: float
    cores: int

    @classmethod
    def of(cls, alone: Record, settled: Record, steps: int, *, router_s: float, cores: int) -> Self:
        """Return what two runs with one environment and one server, the pool, recorded; the second one settles.

        Raises:
            ValueError: an operation was not recorded.
        """
        if missing := [name for name in OPERATIONS if not alone.latencies[name] or not settled.latencies[name]]:
            raise ValueError(f"no {', '.join(missing)} was recorded; measure for longer")
        closing = [seconds / len(settled.latencies["release"]) for seconds in settled.closing_s]
        episodes = len(alone.latencies["release"])
        total = sum(map(sum, alone.latencies.values()))
        in_programs = sum(sum(alone.latencies[name]) for name in WITH_PROGRAMS)
        spent = (
            alone.client_s / total,
            (alone.server_s[0] - episodes * closing[0]) / total,
            (alone.programs_s - episodes * closing[1]) / in_programs,
        )
        shares = [max(0.0, each) for each in spent]  # clocks of the kernel count in ticks
        scale = max(1.0, sum(shares))
        client, pool, programs = (round(share / scale, 4) for share in shares)
        points = {
            name: [round(quantile(values, (point + 0.5) / POINTS), 6) for point in range(POINTS)]
            for name, values in alone.latencies.items()
        }
        return cls(points, steps, client, pool, programs, round(sum(closing), 6), round(router_s, 6), cores)


@dataclass(frozen=True)
class Engine:
    """Turns of an engine behind the gateway.

    Attributes:
        median_s, p99_s: of a turn at ``at_a_time`` turns; between them it is taken as log-normal.
        gateway_s: seconds of the gateway's process per turn, the inverse of its rate without a pace.
    """

    median_s: float
    p99_s: float
    at_a_time: int
    gateway_s: float

    @classmethod
    def read(cls, file: Path) -> Self:
        """Return what a file of `benchmarks.gateway` recorded at its largest number of connections."""
        found = json.loads(file.read_text())
        largest = max(found["paced"], key=lambda each: each["connections"])
        total = largest["gateway"]["total_ms"]
        rate = found["unpaced"]["gateway"]["tokens_per_second"] / found["reply_tokens"]
        return cls(total["p50"] / 1e3, total["p99"] / 1e3, largest["connections"], 1 / rate)

    def turn(self, generator: random.Random) -> float:
        """Return the seconds of a turn."""
        sigma = math.log(self.p99_s / self.median_s) / P99_OF_NORMAL
        return self.median_s * math.exp(generator.gauss(0, sigma))


def predict(
    recorded: Recorded,
    *,
    hosts: int,
    slots: int,
    engine: Engine | None = None,
    engines: int = 1,
    router: bool = True,
    seed: int = 0,
) -> Outcome:
    """Simulate ``slots`` episodes at a time on each of ``hosts``; without an engine, the policy takes no time."""
    generator = random.Random(seed)
    machines = {f"cores {host}": recorded.cores for host in range(hosts)}
    clients = "cores 0"
    if router:
        clients = "client's cores"
        machines[clients] = recorded.cores
    stations = {"client": Station(1, clients), "router": Station(1, clients), "rest": Station()}
    for host in range(hosts):
        stations |= {f"pool {host}": Station(1, f"cores {host}"), f"programs {host}": Station(None, f"cores {host}")}
    if engine is not None:
        stations |= {"gateway": Station(engines), "engine": Station(engine.at_a_time * engines)}
        stations |= {"judge": Station(engine.at_a_time)}

    def call(name: str, host: int) -> Iterator[tuple[str, float]]:
        seconds = generator.choice(recorded.latencies[name])
        programs = recorded.programs if name in WITH_PROGRAMS else 0.0
        yield "client", seconds * recorded.client
        if router:
            yield "router", recorded.router_s
        yield f"pool {host}", seconds * recorded.pool
        if programs:
            yield f"programs {host}", seconds * programs
        yield "rest", seconds * max(0.0, 1 - recorded.client - recorded.pool - programs)

    def turn(station: str) -> Iterator[tuple[str, float]]:
        if engine is not None:
            yield "gateway", engine.gateway_s
            yield station, engine.turn(generator)

    def episode(job: int) -> Iterator[tuple[str, float]]:
        host = job % hosts
        yield from call("lease", host)
        yield from call("reset", host)
        for _ in range(recorded.steps):
            yield from turn("engine")
            yield from call("step", host)
        yield from call("evaluate", host)
        yield from turn("judge")
        yield from call("release", host)
        yield f"{ASIDE}programs {host}", recorded.closing_s

    jobs = hosts * slots
    rounds = max(LEAST_ROUNDS, ROUNDS_PER_JOB * jobs)
    return simulate(stations, jobs, episode, machines=machines, rounds=rounds, warm_up=max(LEAST_ROUNDS // 4, 2 * jobs))


def growth(
    recorded: Recorded, engine: Engine, hosts: Sequence[int], *, slots: int, engines: int
) -> list[dict[str, Any]]:
    """Return episodes per second by number of hosts, and the station that is busiest."""
    rows = []
    for count in hosts:
        found = predict(recorded, hosts=count, slots=slots, engine=engine, engines=engines)
        name, share = max(found.busy.items(), key=lambda pair: pair[1])
        rows.append(
            {
                "hosts": count,
                "episodes_per_s": round(found.rate, 2),
                "episode_s": round(found.round_s, 3),
                "busiest": name.split()[0],
                "busy": round(share, 3),
            }
        )
    return rows
