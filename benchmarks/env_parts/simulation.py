"""A closed network of queues as a simulation of events: jobs go round their visits for ever.

Guarantees: a station serves first come, first served; one without a number of servers has no queue. A visit to a station on
a machine is processor time: all visits that are served on a machine share its cores, none gets more than one. Any other
visit is plain time. The same generator gives the same result. Time is in seconds. Pure.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

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
