"""Decide about a candidate from what one engine does with it, before the other engines get it.

Guarantees: a pure function of its inputs. It refuses for a named reason with its numbers, and never because there is too little to
compare. Questions are paired: engine and trainer had the same weights. Live replies are not, because every conversation has one
engine; they are compared by shares, with Fisher's exact test (Fisher, Statistical Methods for Research Workers, 1934, section 21.02).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from openclaw.config.gate_variables import GateVariables
from openclaw.gate.decision import UNLIKELY, Paired
from openclaw.gate.margin import chance_of_signs

FEWEST_TIMED = 8
"""Replies of each version from which their speeds are compared."""


@dataclass(frozen=True)
class Agreement:
    """What engine and trainer say with the same weights.

    Attributes:
        difference: mean absolute difference of the log probabilities of stored replies, in nats per token; None without any.
        replies: greedy replies to the same prompts, of the trainer (``serving``) and of the engine (``candidate``).
    """

    difference: float | None
    replies: Sequence[Paired] = ()


@dataclass(frozen=True)
class Live:
    """A reply that a client got.

    Attributes:
        good: whether it is not degenerate.
        liked: the verdict; None without one, or without an opinion.
        pace: seconds per token.
    """

    good: bool
    liked: bool | None
    pace: float


def disagrees(agreement: Agreement, bounds: GateVariables) -> tuple[list[str], dict[str, float]]:
    """Return what the gate's own questions say against the candidate on its engine, and their numbers."""
    refusals: list[str] = []
    metrics: dict[str, float] = {}
    if (difference := agreement.difference) is not None:
        if math.isfinite(difference):
            metrics["gate/canary_difference"] = difference
        if not difference <= bounds.canary_difference:
            refusals.append(
                f"its engine gives stored replies other log probabilities than the trainer, by {difference:.3f} nats/token, more "
                f"than OPENCLAW_CANARY_DIFFERENCE={bounds.canary_difference:g}"
            )
    if replies := agreement.replies:
        trainer, engine = _share([each.serving for each in replies]), _share([each.candidate for each in replies])
        metrics["gate/canary_degenerate"] = 1 - engine
        signs = [float(each.candidate - each.serving) for each in replies]
        if trainer - engine > bounds.gate_degenerate and chance_of_signs(signs) <= UNLIKELY:
            refusals.append(
                f"{1 - engine:.0%} of its engine's greedy replies are degenerate, of the trainer's {1 - trainer:.0%}"
            )
    return refusals, metrics


def does_worse(
    candidate: Sequence[Live], serving: Sequence[Live], bounds: GateVariables
) -> tuple[list[str], dict[str, float]]:
    """Return what live replies say against the candidate, and their numbers."""
    refusals: list[str] = []
    metrics = {"gate/canary_turns": float(len(candidate))}
    if not candidate or not serving:
        return refusals, metrics
    good, usual = [each.good for each in candidate], [each.good for each in serving]
    metrics["gate/canary_live_degenerate"] = 1 - _share(good)
    if _share(usual) - _share(good) > bounds.gate_degenerate and chance_of_shares(good, usual) <= UNLIKELY:
        refusals.append(
            f"{1 - _share(good):.0%} of {len(good)} live replies are degenerate, of the serving version {1 - _share(usual):.0%}"
        )
    liked, before = ([each.liked for each in found if each.liked is not None] for found in (candidate, serving))
    if min(len(liked), len(before)) >= bounds.gate_fewest:
        metrics["gate/canary_liked"] = _share(liked)
        if _share(liked) < _share(before) and chance_of_shares(liked, before) <= UNLIKELY:
            refusals.append(
                f"{_share(liked):.0%} of {len(liked)} judged live replies are liked, of the serving version {_share(before):.0%}"
            )
    if min(len(candidate), len(serving)) >= FEWEST_TIMED:
        slower = statistics.median(each.pace for each in candidate) / statistics.median(each.pace for each in serving)
        metrics["gate/canary_slowdown"] = slower
        if slower > bounds.canary_slowdown:
            refusals.append(
                f"its live replies take {slower:.1f} times as long per token, more than "
                f"OPENCLAW_CANARY_SLOWDOWN={bounds.canary_slowdown:g}"
            )
    return refusals, metrics


def chance_of_shares(some: Sequence[bool], others: Sequence[bool]) -> float:
    """Return the probability that so few of ``some`` are good if good ones fell on both alike (hypergeometric, one-sided)."""
    total, good = len(some) + len(others), sum(some) + sum(others)
    ways = math.comb(total, good)
    least = max(0, good - len(others))
    return sum(math.comb(len(some), n) * math.comb(len(others), good - n) for n in range(least, sum(some) + 1)) / ways


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values)
