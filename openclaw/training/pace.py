"""What the next training step is about, and when it may be taken.

A step is due
    * with a full batch of anybody's samples, of ``--rollout-batch-size``;
    * with ``OPENCLAW_PACE=session``, also when a person's session is over, or quiet for ``OPENCLAW_QUIET_SECONDS`` with
      every turn judged: with the ready samples of this person;
    * when a person has practised: with one whole round of practice, ``OPENCLAW_PRACTICE_PASSES`` times.

Of those due that wait for ten minutes, who waits for longest goes first. Otherwise the person goes next who trained the fewest
tokens in the last hour, and a full batch after everybody. A person whose training is paused takes no part (`groundwork.paused`).

With an adapter per person every batch is one person's: a full batch is due with as many samples of this person, and a batch that
lost some of them goes on with the rest, so that nobody waits for one person's next reply. There a person's wait begins anew with
each of its own batches, however old its other samples are. So nobody waits longer than ten minutes and one step of each other
person, however much the others send.

`next_of` and what it calls are pure; `Pace` gives them the ledger, the clock and the requests under way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from groundwork.paused import paused_people
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.config.train_when import TrainWhen
from openclaw.gateway.under_way import InFlightRequest
from openclaw.ledger.records import Origin
from openclaw.ledger.store import Ledger
from openclaw.ledger.waiting import Held, WaitingRound, WaitingSession
from openclaw.owners import LOCAL, owner_of_key, root

LATE_SECONDS = 600.0
"""Who waits for longer goes first."""
FAIR_SECONDS = 3600.0
"""How long tokens count against who trained them."""
ASKS = "POST "
"""How the route of a request begins that asks for a reply."""


@dataclass(frozen=True)
class Due:
    """A batch to claim.

    Attributes:
        count: rollouts that it has then.
        person: whose; None: anybody's.
        origin: of its samples.
        passes: see `slime.rollout.base_types.RolloutFnTrainOutput`; None: a full batch.
    """

    count: int
    person: str | None = None
    origin: Origin = "live"
    passes: int | None = None


@dataclass(frozen=True)
class Claimant:
    """A batch that may be next: what it is, and since when its person waits for it."""

    due: Due
    since: float


@dataclass(frozen=True)
class PaceSettings:
    """What the environment says about the pace.

    Attributes:
        by_session: whether a step may be about one session's feedback.
        quiet_seconds: without a request, after which a session is quiet and nobody talks.
        passes: over practice.
        when: training may take place.
    """

    by_session: bool = False
    quiet_seconds: float = RuntimeVariables.quiet_seconds
    passes: int = RuntimeVariables.practice_passes
    when: TrainWhen = field(default_factory=TrainWhen)

    @staticmethod
    def from_env(environment: Mapping[str, str] = os.environ) -> PaceSettings:
        """Return the settings of this environment.

        Raises:
            ConfigError: a variable is invalid.
        """

        def value(field: str) -> object:
            return RuntimeVariables.declared(field).read(environment)[0]

        return PaceSettings(
            value("pace") == "session",
            cast(float, value("quiet_seconds")),
            cast(int, value("practice_passes")),
            TrainWhen.read(str(value("train_when"))),
        )


def due_people(
    sessions: Iterable[WaitingSession], now: float, quiet_seconds: float, talking: Collection[str], batch: int
) -> list[Claimant]:
    """Return the people of whom a session is over or quiet, with all its turns judged; since when it is.

    Args:
        sessions: that have ready samples.
        now: in seconds since the epoch.
        quiet_seconds: see `PaceSettings`.
        talking: people who wait for a reply; a session of theirs is not quiet.
        batch: most rollouts of a step.
    """
    since: dict[str, float] = {}
    for session in sessions:
        quiet_at = session.active_at + quiet_seconds
        quiet = quiet_at <= now and session.person not in talking
        if session.unjudged or not (session.closed or quiet):
            continue
        at = session.newest if session.closed else max(session.newest, quiet_at)
        since[session.person] = min(at, since.get(session.person, at))
    return [Claimant(Due(batch, person, passes=1), at) for person, at in since.items()]


def due_full(full: Mapping[str, float], batch: int) -> list[Claimant]:
    """Return the people of whom a full batch of ``batch`` rollouts is ready; ``full``: since when, by person."""
    return [Claimant(Due(batch, person), at) for person, at in full.items()]


def after_turns(claimants: Iterable[Claimant], turns: Mapping[str, float]) -> list[Claimant]:
    """Return the batches, of which none is due before its person's last one was taken.

    Args:
        claimants: each of one person.
        turns: when the last batch of each person was taken.
    """
    return [replace(each, since=max(each.since, turns.get(each.due.person or LOCAL, 0.0))) for each in claimants]


def due_practice(rounds: Iterable[WaitingRound], passes: int) -> list[Claimant]:
    """Return the people who have practised."""
    return [Claimant(Due(each.count, each.person, "practice", passes), each.since) for each in rounds]


def next_of(claimants: Collection[Claimant], now: float, tokens: Callable[[], Mapping[str, int]]) -> Due | None:
    """Return the batch that goes next; ``tokens``: what each person trained lately, asked for if several wait."""
    if len(claimants) < 2:
        return next((each.due for each in claimants), None)
    first = min(claimants, key=lambda each: each.since)
    if now - first.since >= LATE_SECONDS:
        return first.due
    trained = tokens()

    def rank(each: Claimant) -> tuple[bool, int, float]:
        person = each.due.person
        return person is None, 0 if person is None else trained.get(person, 0), each.since

    return min(claimants, key=rank).due


class Pace:
    """Decides from the ledger what is due. Owned by the data source."""

    def __init__(
        self,
        ledger: Ledger,
        run_dir: str,
        settings: PaceSettings,
        under_way: Callable[[], list[InFlightRequest]],
        clock: Callable[[], float] = time.time,
        *,
        per_person: bool = False,
    ) -> None:
        """Decide for a run.

        Args:
            ledger: of the run.
            run_dir: its folder, which has the notes of people whose training is paused.
            settings: of its environment.
            under_way: returns the requests that the gateway answers now.
            clock: returns seconds since the epoch.
            per_person: whether each person has an adapter, so that every batch is one person's.
        """
        self._ledger = ledger
        self._run_dir = run_dir
        self._settings = settings
        self._under_way = under_way
        self._clock = clock
        self._per_person = per_person
        self._turns: dict[str, float] = {}

    def taken(self, due: Due) -> None:
        """Note that a batch was claimed: its person's wait begins anew."""
        if due.person is not None:
            self._turns[due.person] = self._clock()

    def paused(self) -> frozenset[str]:
        """Return the people whose training is paused."""
        return frozenset(paused_people(self._run_dir))

    def due(self, rollout_id: int, batch: int) -> Due | None:
        """Return the batch that is due for ``rollout_id``, or None.

        A batch that has samples already, because others of it were dropped or a process died, remains what it is: a
        person's goes on with those that are left, and one that was full is filled again.

        Args:
            rollout_id: of the batch.
            batch: rollouts of a full batch.
        """
        waiting, settings, without = self._ledger.waiting, self._settings, self.paused()
        held = waiting.held(rollout_id)
        if held.count and self._per_person:
            whole = held.origin == "live" and held.count >= batch
            return Due(batch, held.person) if whole else self._rest(held)
        if held.count and (
            held.origin == "practice" or (settings.by_session and not self._was_full(held, rollout_id, batch))
        ):
            return self._rest(held)
        if held.count:
            ready = self._ledger.samples.ready_count(without=without)
            return Due(batch) if ready >= batch - held.count else None
        now = self._clock()
        claimants = due_practice(waiting.rounds(without), settings.passes)
        if settings.by_session:
            talking = {root(owner_of_key(request.key)) for request in self._asked()}
            sessions = waiting.sessions(without)
            claimants += due_people(sessions, now, settings.quiet_seconds, talking, batch)
        if self._per_person:
            claimants += due_full(waiting.full_people(batch, without), batch)
            claimants = after_turns(claimants, self._turns)
        elif (full := waiting.full_since(batch, without)) is not None:
            claimants.append(Claimant(Due(batch), full))
        chosen = next_of(claimants, now, lambda: waiting.tokens_since(now - FAIR_SECONDS, settings.passes))
        if chosen is None or chosen.person is None:
            return chosen
        ready = self._ledger.samples.ready_count(chosen.person, chosen.origin)
        return replace(chosen, count=min(chosen.count, ready)) if ready else None

    def _was_full(self, held: Held, rollout_id: int, batch: int) -> bool:
        """Return whether a batch of replies is anybody's: of several people, or once of as many rollouts as a full one."""
        return held.person is None or self._ledger.samples.taken_count(rollout_id) >= batch

    def _rest(self, held: Held) -> Due:
        passes = self._settings.passes if held.origin == "practice" else 1
        return Due(held.count, held.person, held.origin, passes)

    def waits(self) -> str | None:
        """Return why no step may be taken now, or None."""
        when = self._settings.when
        if not when.open_at(self._clock()):
            return f"training waits for the hours of OPENCLAW_TRAIN_WHEN={when.text}"
        if not when.idle:
            return None
        if asked := self._asked():
            return f"training waits until nobody talks (OPENCLAW_TRAIN_WHEN=idle): requests under way: {len(asked)}"
        last = self._ledger.waiting.last_reply()
        quiet = self._settings.quiet_seconds
        if last is not None and self._clock() - last < quiet:
            return f"training waits until nobody talks (OPENCLAW_TRAIN_WHEN=idle) for {quiet:g} s"
        return None

    def _asked(self) -> list[InFlightRequest]:
        return [request for request in self._under_way() if request.route.startswith(ASKS)]
