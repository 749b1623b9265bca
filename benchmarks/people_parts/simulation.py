"""Many owners on one box, simulated from measured costs; who is next is decided by the run's own code.

Owners hold conversations at random times (Poisson, seeded; some talk much more than others). Each judged turn gives a sample, and
some conversations a round of practice. One trainer takes one owner's batch after the other; `openclaw.training.pace.Pace` decides
which, from a `Book` of what waits that stands in for the ledger. So the bound on waiting and the fairness are those of the product;
only seconds and bytes come from `Costs`.

Left out: retries, the gate's probes, and requests that are under way when a conversation is asked whether it is quiet.
"""

from __future__ import annotations

import heapq
import json
import math
import random
import statistics
import tempfile
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from openclaw.launch.adapters import HELD, KEPT, room_of
from openclaw.ledger.records import Origin
from openclaw.ledger.store import Ledger
from openclaw.ledger.waiting import Held, WaitingRound, WaitingSession
from openclaw.training.pace import (
    LATE_SECONDS,
    Due,
    Pace,
    PaceSettings,
    after_turns,
    due_full,
    due_people,
    due_practice,
)

DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class Costs:
    """What things cost, in seconds and numbers; a file of them says where each figure is from (``sources``).

    Attributes:
        parameters: of an adapter.
        element: bytes of a parameter as engines read it.
        copy_out: of who leaves the model, to host memory.
        from_memory: letting somebody in from host memory.
        from_disk: the same from the folder.
        publish: writing the folder of a version and the book.
        tokens_per_second: of a step.
        load: of an adapter into an engine, from its folder.
        judge: from a reply's next state to its verdict.
        reply: of an answer.
        practice: from a complaint to a round that is ready.
    """

    parameters: int
    element: int
    copy_out: float
    from_memory: float
    from_disk: float
    publish: float
    tokens_per_second: float
    load: float
    judge: float
    reply: float
    practice: float

    @staticmethod
    def read(file: Path) -> Costs:
        """Read a file of costs.

        Raises:
            ValueError: a figure is missing, unknown or not positive.
        """
        found = json.loads(file.read_text())
        try:
            costs = Costs(**{name: value for name, value in found.items() if name != "sources"})
        except TypeError as error:
            raise ValueError(f"{file}: {error}") from error
        if wrong := [name for name, value in asdict(costs).items() if not value > 0]:
            raise ValueError(f"{file}: {wrong[0]} must be above 0")
        return costs


@dataclass(frozen=True)
class Traffic:
    """How people talk.

    Attributes:
        owners: how many.
        hours: simulated.
        sessions: conversations of an owner in a day of 24 hours, on average; these hours have an equal part of them.
        spread: sigma of the lognormal number of conversations per owner.
        turns: messages of a conversation, on average (geometric, at least 2).
        pause: seconds between a reply and the next message, on average (exponential).
        tokens: of a sample, median (lognormal, `tokens_spread`).
        tokens_spread: sigma.
        judged: share of turns that give a sample.
        complaints: share of conversations that give a round of practice.
        practice_samples: samples of a round.
        practice_tokens: tokens of a round.
        floods: how many times as much as an average one the first owner talks; 0: as anybody.
        batch: samples of a full batch.
        seed: of everything.
    """

    owners: int = 300
    hours: float = 8.0
    sessions: float = 12.0
    spread: float = 1.0
    turns: float = 5.0
    pause: float = 30.0
    tokens: float = 2500.0
    tokens_spread: float = 0.7
    judged: float = 0.6
    complaints: float = 0.33
    practice_samples: int = 16
    practice_tokens: int = 16_384
    floods: float = 0.0
    batch: int = 16
    seed: int = 0


@dataclass
class Talked:
    """A conversation with samples that wait, or did."""

    person: str
    newest: float
    active_at: float
    unjudged: int = 0
    ready: int = 0


@dataclass(frozen=True)
class Waits:
    """A sample that waits: whose, of which conversation, its tokens, and since when."""

    person: str
    session: int
    tokens: int
    since: float


class Book:
    """What waits, as the ledger would say it to `Pace`: both ``ledger.waiting`` and ``ledger.samples``."""

    def __init__(self) -> None:
        self.sessions_by_number: dict[int, Talked] = {}
        self.live: defaultdict[str, deque[Waits]] = defaultdict(deque)
        self.practised: defaultdict[str, deque[list[Waits]]] = defaultdict(deque)
        self.steps: deque[tuple[float, str, int]] = deque()
        self.waiting = self.samples = self

    def held(self, rollout_id: int) -> Held:
        """Return that a batch has nothing yet: claims are whole here."""
        return Held(0, None, "live")

    def sessions(self, without: Collection[str] = ()) -> list[WaitingSession]:
        """See `openclaw.ledger.waiting.Waiting.sessions`."""
        return [
            WaitingSession(one.person, one.newest, one.active_at, closed=False, unjudged=one.unjudged > 0)
            for one in self.sessions_by_number.values()
            if one.ready and one.person not in without
        ]

    def rounds(self, without: Collection[str] = ()) -> list[WaitingRound]:
        """See `openclaw.ledger.waiting.Waiting.rounds`."""
        return [
            WaitingRound(person, len(waiting), waiting[0].since)
            for person, rounds in self.practised.items()
            for waiting in rounds
            if person not in without
        ]

    def full_people(self, count: int, without: Collection[str] = ()) -> dict[str, float]:
        """See `openclaw.ledger.waiting.Waiting.full_people`."""
        return {
            person: waiting[count - 1].since
            for person, waiting in self.live.items()
            if len(waiting) >= count and person not in without
        }

    def tokens_since(self, at: float, passes: int) -> Counter[str]:
        """See `openclaw.ledger.waiting.Waiting.tokens_since`; ``passes`` are in the tokens of a step."""
        while self.steps and self.steps[0][0] < at:
            self.steps.popleft()
        found: Counter[str] = Counter()
        for _, person, tokens in self.steps:
            found[person] += tokens
        return found

    def ready_count(self, person: str, origin: Origin) -> int:
        """See `openclaw.ledger.samples.Samples.ready_count`."""
        return len(self.live[person]) if origin == "live" else sum(map(len, self.practised[person]))

    def claim(self, due: Due) -> list[Waits]:
        """Take the samples of a batch."""
        person = cast(str, due.person)
        if due.origin == "practice":
            return self.practised[person].popleft()
        taken = [self.live[person].popleft() for _ in range(due.count)]
        for sample in taken:
            talked = self.sessions_by_number[sample.session]
            talked.ready -= 1
            if not talked.ready and not talked.unjudged:
                del self.sessions_by_number[sample.session]
        return taken


@dataclass
class Counts:
    """What a simulation counts."""

    waits: list[tuple[float, str, float]] = field(default_factory=list)
    """When each waiting sample went live, whose it was, and its seconds from the verdict."""
    turns: list[tuple[str, float]] = field(default_factory=list)
    """Seconds that each batch waited for its turn after it was due and its owner's last one was taken."""
    steps: Counter[str] = field(default_factory=Counter)
    longest_step: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    tokens: Counter[str] = field(default_factory=Counter)
    offered: Counter[str] = field(default_factory=Counter)
    let_in: Counter[str] = field(default_factory=Counter)
    busy: float = 0.0
    requests: int = 0
    loads: int = 0
    most_held: int = 0
    most_in_memory: int = 0
    late: int = 0


class Box:
    """One engine and one trainer, in simulated time."""

    def __init__(self, traffic: Traffic, costs: Costs, people_in_memory: int, run_dir: str) -> None:
        """``people_in_memory``: see ``--people-in-memory``; ``run_dir``: a folder without notes of paused people."""
        self.traffic, self.costs, self._in_memory = traffic, costs, people_in_memory
        self.now, self.counts, self.book = 0.0, Counts(), Book()
        self._random = random.Random(traffic.seed)
        self._events: list[tuple[float, int, str, tuple[Any, ...]]] = []
        self._order = 0
        settings = PaceSettings(by_session=True)
        self._passes, self._quiet = settings.passes, settings.quiet_seconds
        ledger = cast(Ledger, self.book)
        self._pace = Pace(ledger, run_dir, settings, list, lambda: self.now, per_person=True)
        self._host: OrderedDict[str, None] = OrderedDict()
        self._in_model: str | None = None
        self._turns: dict[str, float] = {}
        self._held: OrderedDict[tuple[str, int], None] = OrderedDict()
        self.versions: Counter[str] = Counter()
        self._free_at = 0.0
        self._sessions = 0
        self._day = traffic.hours * 3600

    def run(self) -> Counts:
        """Simulate until everybody has talked and learned."""
        for person, per_second in self._rates().items():
            self._next_session(person, per_second, 0.0)
        while self._events:
            self.now, _, kind, words = heapq.heappop(self._events)
            getattr(self, f"_{kind}")(*words)
            if self.now >= self._free_at:
                self._train()
        return self.counts

    def _rates(self) -> dict[str, float]:
        """Return each owner's conversations per second."""
        traffic = self.traffic
        mean = traffic.sessions / DAY_SECONDS
        shift = -(traffic.spread**2) / 2
        rates = {
            f"owner {number}": mean * math.exp(self._random.gauss(shift, traffic.spread))
            for number in range(traffic.owners)
        }
        if traffic.floods:
            rates["owner 0"] = mean * traffic.floods
        return rates

    def _at(self, time: float, kind: str, *words: Any) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, self._order, kind, words))

    def _next_session(self, person: str, per_second: float, after: float) -> None:
        start = after + self._random.expovariate(per_second)
        if start < self._day:
            self._at(start, "session", person, per_second)

    def _session(self, person: str, per_second: float) -> None:
        self._next_session(person, per_second, self.now)
        traffic, source = self.traffic, self._random
        turns = 2
        while source.random() > 1 / max(1.0, traffic.turns - 1):
            turns += 1
        self._sessions += 1
        complains = source.random() < traffic.complaints
        self._at(self.now, "request", person, self._sessions, turns, complains)

    def _request(self, person: str, session: int, left: int, complains: bool) -> None:
        """Somebody sends a message: the reply, the verdict on the one before, and the next message."""
        counts, costs, source = self.counts, self.costs, self._random
        counts.requests += 1
        delay = self._load(person)
        finished = self.now + delay + costs.reply
        talked = self.book.sessions_by_number.setdefault(session, Talked(person, self.now, finished))
        talked.active_at = finished
        if left > 1:
            following = finished + source.expovariate(1 / self.traffic.pause)
            self._at(following, "request", person, session, left - 1, complains)
            if source.random() < self.traffic.judged:
                talked.unjudged += 1
                tokens = round(self.traffic.tokens * math.exp(source.gauss(0, self.traffic.tokens_spread)))
                self._at(following + costs.judge, "verdict", person, session, tokens)
        elif complains:
            self._at(finished + costs.practice, "practice", person)
        self._at(finished + self._quiet, "look")

    def _load(self, person: str) -> float:
        """Return the seconds until the engine has the owner's newest version."""
        if not (version := self.versions[person]):
            return 0.0
        delay = 0.0
        if (person, version) not in self._held:
            delay = self.costs.load
            self.counts.loads += 1
            while len(self._held) >= HELD:
                self._held.popitem(last=False)
        self._held[person, version] = None
        self._held.move_to_end((person, version))
        self.counts.most_held = max(self.counts.most_held, len(self._held))
        return delay

    def _verdict(self, person: str, session: int, tokens: int) -> None:
        talked = self.book.sessions_by_number[session]
        talked.unjudged -= 1
        talked.ready += 1
        talked.newest = self.now
        self.book.live[person].append(Waits(person, session, tokens, self.now))
        self.counts.offered[person] += tokens
        self._at(max(self.now, talked.active_at + self._quiet), "look")

    def _practice(self, person: str) -> None:
        each = self.traffic.practice_tokens // self.traffic.practice_samples
        self.book.practised[person].append([Waits(person, 0, each, self.now)] * self.traffic.practice_samples)
        self.counts.offered[person] += each * self.traffic.practice_samples * self._passes

    def _look(self) -> None:
        """Look whether a batch is due."""

    def _train(self) -> None:
        """Begin the step that is due, if any."""
        due = self._pace.due(0, self.traffic.batch)
        if due is None or due.person is None:
            return
        person, costs, counts = due.person, self.costs, self.counts
        counts.turns.append((person, self.now - self._due_since(due)))
        samples = self.book.claim(due)
        self._pace.taken(due)
        self._turns[person] = self.now
        tokens = sum(sample.tokens for sample in samples) * (due.passes or 1)
        seconds = self._let_in(person) + tokens / costs.tokens_per_second + costs.publish
        self._free_at = self.now + seconds
        counts.busy += seconds
        counts.steps[person] += 1
        counts.tokens[person] += tokens
        counts.longest_step[person] = max(counts.longest_step[person], seconds)
        self.book.steps.append((self._free_at, person, tokens))
        self._at(self._free_at, "live", person, samples)

    def _due_since(self, due: Due) -> float:
        """Return since when the owner of a batch waits for it, as `Pace` counts."""
        book, batch = self.book, self.traffic.batch
        claimants = due_practice(book.rounds(), self._passes)
        claimants += due_people(book.sessions(), self.now, self._quiet, (), batch)
        claimants += due_full(book.full_people(batch), batch)
        of_person = [each for each in claimants if (each.due.person, each.due.origin) == (due.person, due.origin)]
        return min(each.since for each in after_turns(of_person, self._turns))

    def _let_in(self, person: str) -> float:
        """Return the seconds of an exchange; see `slime.backends.trainer.people.People.let_in`."""
        if person == self._in_model:
            return 0.0
        seconds = 0.0
        if self._in_model is not None:
            seconds += self.costs.copy_out
            self._host[self._in_model] = None
            if len(self._host) > self._in_memory:
                self._host.popitem(last=False)
        if person in self._host:
            del self._host[person]
            where, more = "from memory", self.costs.from_memory
        elif self.versions[person]:
            where, more = "from disk", self.costs.from_disk
        else:
            where, more = "new", self.costs.from_memory
        self.counts.let_in[where] += 1
        self._in_model = person
        self.counts.most_in_memory = max(self.counts.most_in_memory, len(self._host))
        return seconds + more

    def _live(self, person: str, samples: Sequence[Waits]) -> None:
        self.versions[person] += 1
        for sample in samples:
            self.counts.waits.append((self.now, person, self.now - sample.since))


def simulated(traffic: Traffic, costs: Costs, people_in_memory: int) -> dict[str, Any]:
    """Simulate one box and return what came out."""
    with tempfile.TemporaryDirectory(prefix="people-") as folder:
        box = Box(traffic, costs, people_in_memory, folder)
        counts = box.run()
    others = [seconds for _, person, seconds in counts.waits if not (traffic.floods and person == "owner 0")]
    turns = [seconds for _, seconds in counts.turns]
    bound = LATE_SECONDS + sum(counts.longest_step.values())
    plan = room_of(costs.parameters, costs.element, people_in_memory)
    kept = sum(min(versions, KEPT) for versions in box.versions.values())
    a_version = plan.of_person / (KEPT + 1)
    minutes = box.now / 60
    served = {
        person: counts.tokens[person] / counts.offered[person] for person in counts.offered if counts.offered[person]
    }
    return {
        "traffic": asdict(traffic),
        "hours until all is learned": round(box.now / 3600, 2),
        "requests": counts.requests,
        "steps": sum(counts.steps.values()),
        "trainer busy": round(counts.busy / box.now, 3),
        "seconds from a verdict to its update": spread(others),
        "seconds of a batch that is due until its turn": spread(turns),
        "bound on that in seconds": round(bound),
        "batches beyond the bound": sum(seconds > bound for seconds in turns),
        "let in": dict(counts.let_in),
        "loads of the engine per minute": round(counts.loads / minutes, 2),
        "loads": counts.loads,
        "tokens trained of those offered, least owner": round(min(served.values()), 3),
        "tokens trained per owner": spread([float(value) for value in counts.tokens.values()]),
        "largest owner's share of tokens": round(max(counts.tokens.values()) / sum(counts.tokens.values()), 3),
        "adapters held by the engine": {"most": counts.most_held, "plan": HELD},
        "GiB of them": gib(counts.most_held / HELD * plan.of_held, plan.of_held),
        "people in the trainer's memory": {"most": counts.most_in_memory, "plan": people_in_memory},
        "GiB of them in the trainer": gib(
            (counts.most_in_memory + 2) / (people_in_memory + 2) * plan.of_trained, plan.of_trained
        ),
        "owners with a version": len(box.versions),
        "versions on disk": kept,
        "GiB on disk": gib((kept + 1) * a_version, traffic.owners * plan.of_person),
    }


def gib(most: float, plan: float) -> dict[str, float]:
    """Return the most that was needed and what the plan of a launch says, in GiB."""
    return {"most": round(most / 2**30, 3), "plan": round(plan / 2**30, 3)}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median, the 95th percentile and the largest."""
    ordered = sorted(values)
    cut = ordered[min(len(ordered) - 1, math.ceil(0.95 * len(ordered)) - 1)]
    return {"p50": round(statistics.median(ordered), 1), "p95": round(cut, 1), "max": round(ordered[-1], 1)}
