"""The teacher's log probabilities at the sampling temperature, from its likeliest tokens at temperature 1.

An engine scores given tokens at temperature 1 only, but the policy samples at ``T``. With ``a = 1/T`` and ``p`` the teacher's
probabilities at temperature 1,

    log p_T(v) = a log p(v) - log Z,    Z = sum_u p(u)^a.

The engine reports its likeliest tokens ``U``; each other token has a probability of at most ``m``, the smallest in ``U``. For
``T <= 1`` the rest of the sum is therefore between 0 and ``m^(a-1) (1 - sum_U p)``. At ``T = 1``, ``Z`` is 1.

Guarantees: a returned log probability is off by at most `TOLERANCE`, the engine's own arithmetic aside. Where ``U`` does not
settle it that closely, or lacks a token, and for every ``T > 1``, there is no value. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

TOLERANCE = 1e-4
"""In nats; far below the bound of 1 on a token's log ratio."""


def at_temperature(
    wanted: Sequence[int], ids: Sequence[int], log_probs: Sequence[float], temperature: float
) -> list[float] | None:
    """Return the log probabilities of ``wanted`` at ``temperature``, or None if the row does not settle them.

    Args:
        wanted: token ids.
        ids: the likeliest tokens of the position.
        log_probs: theirs at temperature 1.
        temperature: above 0.
    """
    known = dict(zip(ids, log_probs, strict=True))
    if any(token not in known for token in wanted):
        return None
    normaliser = log_normaliser(log_probs, 1.0 / temperature)
    return None if normaliser is None else [known[token] / temperature - normaliser for token in wanted]


def log_normaliser(log_probs: Sequence[float], power: float) -> float | None:
    """Return ``log sum_u p(u)^power`` from the largest probabilities, or None if they do not settle it."""
    if power == 1.0:
        return 0.0
    if power < 1.0:
        return None  # many tokens that are unlikely at 1 together matter above it
    most, least = max(log_probs), min(log_probs)
    inside = math.fsum(math.exp(power * (value - most)) for value in log_probs)
    outside = max(0.0, 1.0 - math.fsum(map(math.exp, log_probs)))
    rest = math.exp((power - 1.0) * least - power * most) * outside
    if math.log1p(rest / inside) > 2 * TOLERANCE:
        return None
    return power * most + math.log(inside + rest / 2)
