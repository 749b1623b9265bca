"""Confidence intervals for shares and for means over a few seeds.

Guarantees: both functions are deterministic. A wider interval never hides a missing measurement: without data they raise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np


def wilson(successes: float, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a share.

    It inverts the score test: its bounds are the two ``p`` with ``|successes / trials - p| = z * sqrt(p * (1 - p) / trials)``
    (Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953).

    Raises:
        ValueError: unless ``0 <= successes <= trials``, ``trials > 0`` and ``0 < level < 1``.
    """
    _check_level(level)
    if trials <= 0 or not 0 <= successes <= trials:
        raise ValueError(
            f"{successes} successes of {trials} trials: give 0 <= successes <= trials, and a trial at least"
        )
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = successes / trials
    center = share + z * z / (2 * trials)
    margin = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    scale = 1 + z * z / trials
    low = 0.0 if successes == 0 else (center - margin) / scale
    high = 1.0 if successes == trials else (center + margin) / scale
    return low, high


def bootstrap_mean(
    values: Sequence[float], level: float = 0.95, seed: int = 0, rounds: int = 10000
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean.

    Few values give a narrow interval that covers the true mean less often than ``level``; one value gives a point.

    Args:
        values: one per independent run, such as a seed.
        level: share of the resampled means inside the interval.
        seed: of the resampling.
        rounds: number of resamples.

    Raises:
        ValueError: without values, without rounds, or if a value is not finite.
    """
    _check_level(level)
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0 or not np.isfinite(sample).all():
        raise ValueError(f"bootstrap_mean({list(values)}): give at least one finite value")
    if rounds < 1:
        raise ValueError(f"bootstrap_mean(rounds={rounds}): give at least one round")
    picked = np.random.default_rng(seed).integers(sample.size, size=(rounds, sample.size))
    tail = (1 - level) / 2
    low, high = np.quantile(sample[picked].mean(axis=1), [tail, 1 - tail])
    return float(low), float(high)


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level {level}: give a share between 0 and 1, such as 0.95")
