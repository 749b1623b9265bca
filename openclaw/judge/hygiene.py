"""Finds turns that must not be trained whatever the judge says, and the reason that is counted.

Guarantees: a turn that passes has one finite log-probability per id, the temperature that the trainer assumes, and a
length that fits the trainer. Nothing is repaired: a defective turn is excluded.


Reasons: ``side``, ``aborted``, ``no_next_state``, ``temperature``, ``length_mismatch``, ``empty``, ``too_short``,
``too_long``, ``non_finite_logprob``, ``no_weight_version`` here; ``stale`` at the rollout (`openclaw.training.rollout`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from openclaw.ledger.records import Turn

TEMPERATURE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Limits:
    """The limits of the trainer.

    Attributes:
        temperature: by which it divides logits; log-probabilities at another temperature would not match.
        min_response_tokens: shorter replies count as fragments.
        max_tokens: limit on prompt plus response tokens.
    """

    temperature: float
    min_response_tokens: int
    max_tokens: int


def defect(turn: Turn, limits: Limits) -> str | None:
    """Return why ``turn`` must not be trained, or None."""
    checks = {
        "no_next_state": not turn.next_state,
        "empty": not turn.response_ids or not turn.prompt_ids,
        "length_mismatch": len(turn.response_ids) != len(turn.response_logprobs),
        "temperature": abs(turn.temperature - limits.temperature) > TEMPERATURE_TOLERANCE,
        "too_short": len(turn.response_ids) < limits.min_response_tokens,
        "too_long": len(turn.prompt_ids) + len(turn.response_ids) > limits.max_tokens,
        "non_finite_logprob": not all(math.isfinite(value) for value in turn.response_logprobs),
        "no_weight_version": not turn.weight_versions,
    }
    return turn.never_trained or next((reason for reason, found in checks.items() if found), None)
