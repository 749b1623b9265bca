"""Intervals against independent references: the score test's roots by bisection, and every resample counted."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from intervals import bootstrap_mean, wilson


def root_of_score_test(share: float, trials: int, z: float, inside: float, outside: float) -> float:
    """Return the ``p`` between ``inside`` and ``outside`` at which the score statistic is ``z``."""
    for _ in range(200):
        middle = (inside + outside) / 2
        accepted = abs(share - middle) <= z * math.sqrt(middle * (1 - middle) / trials)
        inside, outside = (middle, outside) if accepted else (inside, middle)
    return inside


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (1, 10), (8, 10), (10, 10), (53, 256), (1, 1)])
def test_wilson_solves_the_score_test(successes: int, trials: int, level: float) -> None:
    z, share = NormalDist().inv_cdf((1 + level) / 2), successes / trials
    low, high = wilson(successes, trials, level)
    assert low == pytest.approx(root_of_score_test(share, trials, z, share, 0.0), abs=1e-9)
    assert high == pytest.approx(root_of_score_test(share, trials, z, share, 1.0), abs=1e-9)


def test_wilson_of_a_published_example() -> None:
    # Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662.
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)


@pytest.mark.parametrize("values", [[1.0, 4.0], [2.0, 3.0, 7.0], [5.0, 5.0, 6.0, 11.0]])
def test_bootstrap_agrees_with_all_resamples(values: list[float]) -> None:
    means = [sum(each) / len(each) for each in itertools.product(values, repeat=len(values))]
    expected = np.quantile(means, [0.1, 0.9], method="inverted_cdf")
    assert bootstrap_mean(values, level=0.8, rounds=20000) == pytest.approx(expected, abs=1e-9)


def test_bootstrap_is_deterministic_and_needs_data() -> None:
    values = [3.0, 9.0, 4.5]
    assert bootstrap_mean(values) == bootstrap_mean(values)
    assert bootstrap_mean([7.0]) == (7.0, 7.0)
    with pytest.raises(ValueError, match="at least one finite value"):
        bootstrap_mean([])
    with pytest.raises(ValueError, match="at least one finite value"):
        bootstrap_mean([1.0, math.nan])


@pytest.mark.parametrize(("successes", "trials"), [(1, 0), (-1, 3), (4, 3)])
def test_wilson_refuses_impossible_counts(successes: int, trials: int) -> None:
    with pytest.raises(ValueError, match="give 0 <= successes <= trials"):
        wilson(successes, trials)
