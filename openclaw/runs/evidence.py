"""Is a run learning? The share of liked first replies, by the weights that gave them, and what may be said about it.

A first reply has not read a complaint, so only the weights can have made it better. The windows are equal numbers of
updates. The claim compares the first third of the updates with the last. It is made only if the 95 % interval of the
difference leaves out 0:

    share      Wilson's score interval (Wilson 1927)
    difference Newcombe's hybrid of two of them (Newcombe 1998, method 10)

Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from openclaw.ledger.views import TurnFacts
from slime.rollout.staleness import version_number

Z = 1.959964
"""Normal quantile of a two-sided interval of 95 %."""
WINDOWS = 10
MIN_TURNS = 10
"""Judged first replies that each third needs before anything is claimed."""
Verdict = Literal["better", "worse", "open", "unknown"]


@dataclass(frozen=True)
class Share:
    """``liked`` of ``judged`` first replies."""

    liked: int
    judged: int

    @property
    def value(self) -> float:
        """The share; 0 without any."""
        return self.liked / self.judged if self.judged else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of 95 %; everything without any reply."""
        if not self.judged:
            return 0.0, 1.0
        n, p = self.judged, self.value
        centre = p + Z * Z / (2 * n)
        spread = Z * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
        scale = 1 + Z * Z / n
        return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)

    def __str__(self) -> str:
        return f"{self.liked} of {self.judged} ({100 * self.value:.0f} %)"


@dataclass(frozen=True)
class Window:
    """The first replies of the weights from update ``first`` to ``last``."""

    first: int
    last: int
    share: Share


@dataclass(frozen=True)
class Evidence:
    """What the first replies say.

    Attributes:
        verdict: ``better``, ``worse``, ``open`` (the interval does not say), or ``unknown`` (too few replies).
        sentence: the same in words, with its numbers.
        windows: the curve.
    """

    verdict: Verdict
    sentence: str
    windows: tuple[Window, ...]


FROM_LOGS = Evidence(
    "unknown",
    "Nobody can say from these replies: other weights gave them, because the run trains from logs. Evaluate its checkpoints.",
    (),
)
"""What may be said about a run on logs."""


def difference(before: Share, after: Share) -> tuple[float, float]:
    """Return Newcombe's 95 % interval of ``after - before``."""
    low_before, high_before = before.interval
    low_after, high_after = after.interval
    change = after.value - before.value
    low = change - math.hypot(after.value - low_after, high_before - before.value)
    high = change + math.hypot(high_after - after.value, before.value - low_before)
    return low, high


def updates_of(turn: TurnFacts) -> int | None:
    """Return how many updates the weights of a turn had seen; None if nobody knows."""
    return None if turn.version is None else updates_in(turn.version)


def updates_in(version: str) -> int | None:
    """Return how many updates weights of a version have seen; None for a version without a number."""
    try:
        return version_number(version)
    except ValueError:
        return None


def counts_as_first(turn: TurnFacts) -> bool:
    """Return whether a turn is a judged first reply."""
    return turn.kind == "main" and turn.is_first and turn.state == "judged" and turn.score is not None


def evidence(turns: Iterable[TurnFacts]) -> Evidence:
    """Return what the judged first replies among ``turns`` say about learning."""
    return evidence_of(
        [(at, turn.score == 1) for turn in turns if counts_as_first(turn) and (at := updates_of(turn)) is not None]
    )


def evidence_of(scored: Sequence[tuple[int, bool]]) -> Evidence:
    """Return what judged first replies say: how many updates the weights of each had seen, and whether it was liked."""
    if not scored:
        return Evidence("unknown", "Nobody can say yet: no first reply of a conversation was judged.", ())
    updates = max(at for at, _ in scored)
    third = (updates + 1) / 3
    before = _share(scored, 0, math.ceil(third) - 1)
    after = _share(scored, min(updates, math.ceil(2 * third)), updates)
    return Evidence(*_claim(before, after, updates), _windows(scored, updates))


def _claim(before: Share, after: Share, updates: int) -> tuple[Verdict, str]:
    if updates == 0:
        return (
            "unknown",
            f"Nobody can say yet: all {before.judged} judged first replies are from before the first update.",
        )
    if min(before.judged, after.judged) < MIN_TURNS:
        return "unknown", (
            f"Nobody can say yet: {before.judged} first replies were judged in the first third of the updates and "
            f"{after.judged} in the last; each needs {MIN_TURNS}."
        )
    low, high = (round(100 * bound) for bound in difference(before, after))
    facts = (
        f"the judge liked {after} of the first replies in the last third of the updates, and {before} in the first. "
        f"The difference is {100 * (after.value - before.value):+.0f} points (95 % interval {low:+d} to {high:+d})."
    )
    exact_low, exact_high = difference(before, after)
    if exact_low > 0:
        return "better", f"Yes: {facts}"
    if exact_high < 0:
        return "worse", f"No, it is getting worse: {facts}"
    return "open", f"Not shown: {facts} No change is within the interval."


def _share(scored: Sequence[tuple[int, bool]], first: int, last: int) -> Share:
    opinions = [liked for at, liked in scored if first <= at <= last]
    return Share(sum(opinions), len(opinions))


def _windows(scored: Sequence[tuple[int, bool]], updates: int) -> tuple[Window, ...]:
    width = math.ceil((updates + 1) / WINDOWS)
    counts: dict[int, list[int]] = {}
    for at, liked in scored:
        count = counts.setdefault(at // width, [0, 0])
        count[0] += liked
        count[1] += 1
    return tuple(
        Window(number * width, min(updates, number * width + width - 1), Share(*counts[number]))
        for number in sorted(counts)
    )
