"""Episodes a second of several hosts, simulated from recorded latencies of one, and how far the simulation is off.

A call's recorded latency at one environment at a time holds no queueing. It is split by the processor time that was
recorded beside it: the client's share, the router's, the pool's and its programs', and a rest that only delays. Client, router
and each pool are event loops, so each is a station with one server. What runs on a host shares its cores: the pool, its
programs, the closing of environments beside the next episodes, and for one host without a router the client too.

Assumed: hosts are like the recorded one; one client process drives all of them; the network between them adds nothing;
the engine's turns follow the recorded ones of `benchmarks.gateway`, whose engine is a stand-in with a fixed pace, and a
judge takes one such turn per episode. The simulation knows no failures.

A closed network of queues as a simulation of events: jobs go round their visits for ever.

Guarantees: a station serves first come, first served; one without a number of servers has no queue. A visit to a station on
a machine is processor time: all visits that are served on a machine share its cores, none gets more than one. Any other
visit is plain time. The same generator gives the same result. Time is in seconds. Pure.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.env_parts.load import OPERATIONS, Record
from benchmarks.env_parts.statistics import quantile

ASIDE = "aside "
"""Before the name of a station: the job goes on at once, beside this visit."""
Visits = Callable[[int], Iterable[tuple[str, float]]]
"""The visits of one round of a job, by its number: station, and seconds of service there."""


@dataclass(frozen=True)
class Station:
    """What jobs visit.

    Attributes:
        servers: most visits that are served at a time; None: any number.
        machine: whose cores serve; None: the service takes its time, whatever else is served.
    """

    servers: int | None = None
    machine: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What was seen between the warm-up and the end.

    Attributes:
        rate: rounds that ended, per second.
        round_s: mean seconds of a round.
        busy: share of the time in which each station's servers served, and of each machine's cores that worked; only
            stations with a number of servers.
    """

    rate: float
    round_s: float
    busy: dict[str, float]


@dataclass
class _Place:
    """A station's state; ``served_s`` is the time that its servers were taken, all together."""

    station: Station
    serving: int = 0
    served_s: float = 0.0
    since: float = 0.0
    queue: deque[tuple[int, float]] = field(default_factory=deque[tuple[int, float]])

    def change(self, now: float, by: int) -> None:
        """Take or free servers."""
        self.served_s += self.serving * (now - self.since)
        self.since = now
        self.serving += by


@dataclass
class _Machine:
    """Cores that are shared evenly.

    Attributes:
        work: processor time that one visit would have got if it had been there from the start.
        visits: the ``work`` at which each ends, in order, with job and station.
        turn: number of the last change; events that were foretold before it are void.
    """

    cores: int
    work: float = 0.0
    used_s: float = 0.0
    since: float = 0.0
    turn: int = 0
    visits: list[tuple[float, int, int, str]] = field(default_factory=list[tuple[float, int, int, str]])

    @property
    def pace(self) -> float:
        """Return the share of a core that each visit gets."""
        return min(1.0, self.cores / len(self.visits)) if self.visits else 0.0

    def advance(self, now: float) -> None:
        """Work until ``now``."""
        self.work += self.pace * (now - self.since)
        self.used_s += min(self.cores, len(self.visits)) * (now - self.since)
        self.since = now


def simulate(
    stations: Mapping[str, Station],
    jobs: int,
    visits: Visits,
    *,
    machines: Mapping[str, int] | None = None,
    rounds: int,
    warm_up: int,
) -> Outcome:
    """Run ``jobs`` until ``rounds`` of them have ended after the first ``warm_up``.

    Args:
        stations: by their names.
        jobs: that go round at a time.
        visits: of a job's next round.
        machines: their cores.
        rounds: to see.
        warm_up: rounds that are left out of the outcome.

    Raises:
        ValueError: there is nothing to simulate.
    """
    counts = [station.servers for station in stations.values()] + list((machines or {}).values())
    if jobs < 1 or rounds < 1 or any(count is not None and count < 1 for count in counts):
        raise ValueError("a simulation needs jobs, rounds, servers and cores")
    places = {name: _Place(station) for name, station in stations.items()}
    hosts = {name: _Machine(cores) for name, cores in (machines or {}).items()}
    order, events = itertools.count(), list[tuple[float, int, int, str]]()
    plans: dict[int, Iterator[tuple[str, float]]] = {}
    begun: dict[int, float] = {}
    times: list[float] = []
    now = opened = 0.0
    ended = 0

    def foretell(name: str) -> None:
        """Note when the next visit on a machine ends, if nothing changes before."""
        host = hosts[name]
        host.turn = next(order)
        if host.visits:
            left = max(0.0, host.visits[0][0] - host.work) / host.pace
            heapq.heappush(events, (now + left, host.turn, -1, name))

    def serve(job: int, name: str, seconds: float) -> None:
        places[name].change(now, 1)
        machine = places[name].station.machine
        if machine is None:
            heapq.heappush(events, (now + seconds, next(order), job, name))
            return
        host = hosts[machine]
        host.advance(now)
        heapq.heappush(host.visits, (host.work + seconds, next(order), job, name))
        foretell(machine)

    def enter(job: int) -> None:
        """Send a job to its next station, or to its next round."""
        nonlocal ended, opened
        if job >= jobs:
            return  # it was aside
        while (step := next(plans[job], None)) is None or step[0].startswith(ASIDE):
            if step is not None:
                visit(jobs + next(order), step[0].removeprefix(ASIDE), step[1])
                continue
            ended += 1
            if ended > warm_up:
                times.append(now - begun[job])
            elif ended == warm_up:
                opened = now
                for place in places.values():
                    place.change(now, 0)
                    place.served_s = 0.0
                for host in hosts.values():
                    host.advance(now)
                    host.used_s = 0.0
            if now == begun[job]:
                raise ValueError("a round needs at least one visit that takes time")
            plans[job], begun[job] = iter(visits(job)), now
        visit(job, *step)

    def visit(job: int, name: str, seconds: float) -> None:
        """Serve a job at a station, or let it wait."""
        place = places[name]
        if place.station.servers is None or place.serving < place.station.servers:
            serve(job, name, seconds)
        else:
            place.queue.append((job, seconds))

    for job in range(jobs):
        plans[job], begun[job] = iter(visits(job)), 0.0
        enter(job)
    while ended < warm_up + rounds:
        now, turn, job, name = heapq.heappop(events)
        if job < 0:
            host = hosts[name]
            if turn != host.turn:
                continue
            host.advance(now)
            host.work, _, job, station = heapq.heappop(host.visits)
            foretell(name)
            name = station
        place = places[name]
        place.change(now, -1)
        if place.queue:
            waiting, seconds = place.queue.popleft()
            serve(waiting, name, seconds)
        enter(job)
    passed = now - opened
    for place in places.values():
        place.change(now, 0)
    for host in hosts.values():
        host.advance(now)
    busy = {
        name: place.served_s / passed / place.station.servers for name, place in places.items() if place.station.servers
    }
    busy |= {name: host.used_s / passed / host.cores for name, host in hosts.items()}
    return Outcome(len(times) / passed if passed else math.inf, sum(times) / len(times), busy)


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
