"""Log probabilities at another temperature are those of float64 over the whole vocabulary, or there are none."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openclaw.judge.teacher import TOLERANCE, at_temperature

VOCABULARY = 500


def row_of(logits: torch.Tensor, count: int) -> tuple[list[int], list[float]]:
    found = torch.log_softmax(logits, -1).topk(count)
    return found.indices.tolist(), found.values.tolist()


@given(
    seed=st.integers(0, 10_000),
    scale=st.floats(0.0, 30.0),
    temperature=st.floats(0.05, 2.0),
    count=st.sampled_from([4, 16, 64, VOCABULARY]),
)
def test_a_value_is_that_of_float64_or_missing(seed: int, scale: float, temperature: float, count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(VOCABULARY, generator=generator, dtype=torch.float64) * scale
    ids, log_probs = row_of(logits, count)
    found = at_temperature(ids[:4], ids, log_probs, temperature)
    if found is not None:
        exact = torch.log_softmax(logits / temperature, -1)[ids[:4]].tolist()
        assert found == pytest.approx(exact, abs=TOLERANCE + 1e-9 * scale / temperature)
    elif temperature <= 1.0:
        assert count < VOCABULARY


def test_what_a_row_settles() -> None:
    peaked, flat = torch.zeros(VOCABULARY, dtype=torch.float64), torch.zeros(VOCABULARY, dtype=torch.float64)
    peaked[7] = 20.0
    row = row_of(peaked, 8)
    assert at_temperature([7], *row, 0.6) is not None
    assert at_temperature([7], *row, 1.5) is None, "many unlikely tokens together matter above 1"
    assert at_temperature([7], *row_of(flat, 8), 0.6) is None
    assert at_temperature([7], *row_of(flat, VOCABULARY), 1.0) == [pytest.approx(-math.log(VOCABULARY))]


def test_a_token_outside_of_the_row_has_no_value() -> None:
    assert at_temperature([1, 5], [1, 2, 3], [-0.5, -1.5, -2.0], 1.0) is None
    assert at_temperature([3, 1], [1, 2, 3], [-0.5, -1.5, -2.0], 1.0) == [-2.0, -0.5]
