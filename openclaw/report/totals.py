"""One pass over the turns and samples of a run: what the report's sections count.

Guarantees: memory grows with the number of first replies and judged turns, by a few numbers each, and not with their texts.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from openclaw.ledger.views import SampleFacts, TurnFacts
from openclaw.runs.evidence import FROM_LOGS, Evidence, evidence, updates_of


class FirstReply(NamedTuple):
    """A reply without an earlier one in its request: its turn's number, the updates of its weights, its kind and score."""

    number: int
    updates: int
    kind: str
    score: int | None


@dataclass
class Totals:
    """What was counted.

    Attributes:
        states: turns by state; side turns are in ``sides`` only.
        elsewhere: main turns whose reply another run or program gave.
        reasons: of main turns and of dropped samples.
        scores: verdicts by score and by who gave it.
        seconds: of judging, in the order of the turns.
        firsts: the first replies.
        samples: by state.
        rollouts: samples by the step that used them.
    """

    states: Counter[str] = field(default_factory=Counter)
    sides: int = 0
    elsewhere: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    scores: Counter[tuple[int, str]] = field(default_factory=Counter)
    seconds: array[float] = field(default_factory=lambda: array("d"))
    firsts: list[FirstReply] = field(default_factory=list)
    samples: Counter[str] = field(default_factory=Counter)
    rollouts: Counter[int] = field(default_factory=Counter)
    sessions: int = 0
    first_at: float | None = None
    last_at: float | None = None
    learning: Evidence = field(default_factory=lambda: evidence([]))

    @property
    def mains(self) -> int:
        """Number of main turns."""
        return self.states.total()


def count(turns: Iterable[TurnFacts], samples: Iterable[SampleFacts]) -> Totals:
    """Return the totals of turns and samples, which are read once each."""
    totals = Totals()
    sessions: set[str] = set()
    judged_firsts: list[TurnFacts] = []
    for turn in turns:
        sessions.add(turn.session_id)
        totals.first_at = turn.created_at if totals.first_at is None else totals.first_at
        totals.last_at = turn.finished_at
        _count_turn(totals, turn)
        if turn.is_first and (updates := updates_of(turn)) is not None:
            totals.firsts.append(FirstReply(turn.number, updates, turn.kind, turn.score))
            if turn.score is not None:
                judged_firsts.append(turn)
    for sample in samples:
        totals.samples[sample.state] += 1
        if sample.reason is not None:
            totals.reasons[sample.reason] += 1
        if sample.state in ("leased", "trained") and sample.rollout_id is not None:
            totals.rollouts[sample.rollout_id] += 1
    totals.sessions = len(sessions)
    totals.learning = FROM_LOGS if totals.elsewhere and not judged_firsts else evidence(judged_firsts)
    return totals


def _count_turn(found: Totals, turn: TurnFacts) -> None:
    if turn.kind == "side":
        found.sides += 1
        return
    found.states[turn.state] += 1
    found.elsewhere += turn.elsewhere
    if turn.reason is not None:
        found.reasons[turn.reason] += 1
    if turn.score is not None:
        found.scores[turn.score, turn.score_source or "judge"] += 1
    if turn.seconds:
        found.seconds.append(turn.seconds)
