"""The paired margin and its error against plain float64 formulas, and the sign test against enumeration."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openclaw.gate.decision import Change, chance_of_signs, paired_margin

CHANGES = st.lists(
    st.builds(
        Change,
        cluster=st.sampled_from("abcdefgh"),
        liked=st.booleans(),
        weight=st.sampled_from([1.0, 2.0]),
        change=st.floats(-5, 5),
    ),
    max_size=30,
)


@given(CHANGES)
def test_the_margin_is_the_difference_of_weighted_means(changes: list[Change]) -> None:
    found = paired_margin(changes)
    liked, disliked = ([each for each in changes if each.liked == opinion] for opinion in (True, False))
    means = [
        np.average([each.change for each in group], weights=[each.weight for each in group]) if group else 0.0
        for group in (liked, disliked)
    ]
    assert found.value == pytest.approx(means[0] - means[1], abs=1e-12)
    assert (found.liked, found.disliked) == tuple(len({each.cluster for each in group}) for group in (liked, disliked))


@given(CHANGES, st.floats(-3, 3))
def test_a_shift_of_all_replies_is_not_seen(changes: list[Change], shift: float) -> None:
    moved = [Change(each.cluster, each.liked, each.weight, each.change + shift) for each in changes]
    if len({each.liked for each in changes}) == 2:
        assert paired_margin(moved).value == pytest.approx(paired_margin(changes).value, abs=1e-9)


@given(CHANGES)
def test_opinions_that_are_exchanged_exchange_the_sign(changes: list[Change]) -> None:
    flipped = [Change(each.cluster, not each.liked, each.weight, each.change) for each in changes]
    there, back = paired_margin(changes), paired_margin(flipped)
    assert there.value == pytest.approx(-back.value, abs=1e-12)
    assert there.error == pytest.approx(back.error, abs=1e-12)


@given(CHANGES, st.randoms(use_true_random=False))
def test_the_order_does_not_matter(changes: list[Change], rng: random.Random) -> None:
    mixed = rng.sample(changes, len(changes))
    assert paired_margin(mixed) == pytest.approx(paired_margin(changes)) or paired_margin(mixed).error == math.inf


def test_the_error_is_that_of_the_cluster_robust_regression() -> None:
    rng = np.random.default_rng(0)
    changes = [
        Change(str(rng.integers(9)), bool(rng.integers(2)), float(rng.integers(1, 3)), float(rng.normal()))
        for _ in range(60)
    ]
    design = np.array([[1.0, float(each.liked)] for each in changes])
    weights = np.array([each.weight for each in changes])
    values = np.array([each.change for each in changes])
    bread = np.linalg.inv(design.T @ (weights[:, None] * design))
    coefficients = bread @ design.T @ (weights * values)
    residuals = values - design @ coefficients
    meat = np.zeros((2, 2))
    names = sorted({each.cluster for each in changes})
    for name in names:
        rows = [number for number, each in enumerate(changes) if each.cluster == name]
        score = design[rows].T @ (weights[rows] * residuals[rows])
        meat += np.outer(score, score)
    variance = len(names) / (len(names) - 1) * bread @ meat @ bread
    found = paired_margin(changes)
    assert found.value == pytest.approx(coefficients[1], abs=1e-12)
    assert found.error == pytest.approx(math.sqrt(variance[1, 1]), abs=1e-12)


def test_many_turns_of_one_session_are_one_witness() -> None:
    rng = random.Random(1)
    changes = [Change(f"s{n}", n % 2 == 0, 1.0, rng.gauss(0, 1)) for n in range(12)]
    copied = [each for each in changes for _ in range(10)]
    assert paired_margin(copied).error == pytest.approx(paired_margin(changes).error)


def test_one_opinion_alone_decides_nothing() -> None:
    changes = [Change(f"s{n}", True, 1.0, -5.0) for n in range(20)]
    found = paired_margin(changes)
    assert found.error == math.inf
    assert not found.fell(2.0, 0.0)
    assert not paired_margin([]).fell(0.0, 0.0)


def test_a_fall_needs_both_bounds() -> None:
    def margin(liked: float) -> bool:
        changes = [Change(f"l{n}", True, 1.0, liked + 0.01 * (n % 2)) for n in range(8)]
        changes += [Change(f"d{n}", False, 1.0, 0.01 * (n % 2)) for n in range(8)]
        return paired_margin(changes).fell(2.0, 0.05)

    assert margin(-0.1)
    assert not margin(-0.04)  # many errors, but a small fall
    noisy = [Change(f"s{n}", n % 2 == 0, 1.0, (-0.2 if n % 2 == 0 else 0.0) + (-1) ** (n // 2)) for n in range(8)]
    assert paired_margin(noisy).value < -0.05
    assert not paired_margin(noisy).fell(2.0, 0.05)


@given(st.lists(st.integers(-3, 3), max_size=9))
def test_the_sign_test_counts_signs(differences: list[int]) -> None:
    changed = [each for each in differences if each]
    sums = [
        sum(sign * abs(each) for sign, each in zip(signs, changed, strict=True))
        for signs in itertools.product((1, -1), repeat=len(changed))
    ]
    expected = sum(each <= sum(changed) for each in sums) / len(sums) if changed else 1.0
    assert chance_of_signs(differences) == pytest.approx(expected)


def test_the_sign_test_of_many_tasks_is_quick() -> None:
    assert chance_of_signs([-100] * 150 + [99] * 100) < 0.01
