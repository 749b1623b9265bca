"""A closed network of queues as a simulation of events: jobs go round their visits for ever.

Guarantees: a station serves first come, first served; one without a number of servers only delays. The same generator
gives the same result. Time is in seconds. Pure.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

Visits = Callable[[int], Iterable[tuple[str, float]]]
"""The visits of one round of a job, by its number: station, and seconds of service there."""


@dataclass(frozen=True)
class Outcome:
    """What was seen between the warm-up and the end.

    Attributes:
        rate: rounds that ended, per second.
        round_s: mean seconds of a round.
        busy: share of each station's servers that worked; only stations with a number of servers.
    """

    rate: float
    round_s: float
    busy: dict[str, float]


@dataclass
class _Station:
    servers: int | None
    working: int = 0
    served_s: float = 0.0
    queue: deque[tuple[int, float]] = field(default_factory=deque[tuple[int, float]])


def simulate(stations: Mapping[str, int | None], jobs: int, visits: Visits, *, rounds: int, warm_up: int) -> Outcome:
    """Run ``jobs`` until ``rounds`` of them have ended after the first ``warm_up``.

    Args:
        stations: their number of servers; None delays without a queue.
        jobs: that go round at a time.
        visits: of a job's next round.
        rounds: to see.
        warm_up: rounds that are left out of the outcome.

    Raises:
        ValueError: there is nothing to simulate.
    """
    if jobs < 1 or rounds < 1 or any(count is not None and count < 1 for count in stations.values()):
        raise ValueError("a simulation needs jobs, rounds and servers")
    places = {name: _Station(count) for name, count in stations.items()}
    order, events = itertools.count(), list[tuple[float, int, int, str]]()
    plans: dict[int, Iterator[tuple[str, float]]] = {}
    begun: dict[int, float] = {}
    times: list[float] = []
    now = since = 0.0
    ended = 0

    def serve(job: int, name: str, seconds: float) -> None:
        place = places[name]
        place.working += 1
        place.served_s += seconds
        heapq.heappush(events, (now + seconds, next(order), job, name))

    def enter(job: int) -> None:
        """Send a job to its next station, or to its next round."""
        nonlocal ended, since
        step = next(plans[job], None)
        while step is None:
            ended += 1
            if ended > warm_up:
                times.append(now - begun[job])
            elif ended == warm_up:
                since = now
                for place in places.values():
                    place.served_s = 0.0
            plans[job], begun[job] = iter(visits(job)), now
            step = next(plans[job], None)
            if step is None:
                raise ValueError("a round needs at least one visit")
        name, seconds = step
        place = places[name]
        if place.servers is None or place.working < place.servers:
            serve(job, name, seconds)
        else:
            place.queue.append((job, seconds))

    for job in range(jobs):
        plans[job], begun[job] = iter(visits(job)), 0.0
        enter(job)
    while ended < warm_up + rounds:
        now, _, job, name = heapq.heappop(events)
        place = places[name]
        place.working -= 1
        if place.queue:
            waiting, seconds = place.queue.popleft()
            serve(waiting, name, seconds)
        enter(job)
    passed = now - since
    busy = {name: place.served_s / passed / place.servers for name, place in places.items() if place.servers}
    return Outcome(len(times) / passed if passed else math.inf, sum(times) / len(times), busy)
