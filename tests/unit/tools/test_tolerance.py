"""The tests' own tolerance: rounding passes, an error of the computation does not; and rounding as another processor does it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.helpers.other_rounding import OtherRounding, move
from tests.helpers.tolerance import FEW, MODEL, assert_near, tolerance

FLOAT32 = torch.finfo(torch.float32).eps


@pytest.fixture(autouse=True)
def _no_margins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors made on purpose are not those of the suite."""
    monkeypatch.delenv("TESTS_MARGINS", raising=False)


def test_the_tolerance_follows_dtype_roundings_and_magnitude() -> None:
    assert tolerance(0.5, roundings=1) == 2 * FLOAT32
    assert tolerance([0.5, -6.0], roundings=1) == 12 * FLOAT32
    assert tolerance(torch.tensor([1.0]), roundings=100) == 20 * FLOAT32
    assert tolerance({"a": torch.zeros(0), "b": 1.0}, dtype=torch.bfloat16, roundings=1) == 2**-6
    assert tolerance(1e-3, roundings=1, magnitude=1e-3) == pytest.approx(2e-3 * FLOAT32)
    assert tolerance(8.0, roundings=1, magnitude=2.0) == 4 * FLOAT32
    assert tolerance(1.0) < 2e-6
    assert 0.99e-5 < tolerance(1.0, roundings=MODEL) < 1.02e-5


@pytest.mark.parametrize("scale", [1.0, 6.0, 1000.0])
def test_an_error_above_the_tolerance_fails_at_every_magnitude(scale: float) -> None:
    expected = torch.tensor([scale, 0.1], dtype=torch.float64)
    bound = tolerance(expected)
    assert_near(expected + 0.9 * bound, expected)
    with pytest.raises(AssertionError, match=r"the loss differs by .*; rounding explains"):
        assert_near(expected + 1.1 * bound, expected, what="the loss")


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (math.nan, 1.0),
        (1.0, math.nan),
        ([1.0], [1.0, 1.0]),
        (torch.ones(2, 1), torch.ones(2)),
        ({"a": 1.0}, {"b": 1.0}),
        ([torch.ones(2)], [torch.ones(2), torch.ones(2)]),
        ({"a": 1.0, "b": math.nan}, {"a": 1.0, "b": 1.0}),
    ],
)
def test_a_nan_and_another_shape_fail(actual: Any, expected: Any) -> None:
    with pytest.raises(AssertionError):
        assert_near(actual, expected)


def test_margins_are_written_where_asked(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTS_MARGINS", str(tmp_path / "margins"))
    assert_near(1.0 + tolerance(1.0) / 2, 1.0, what="half")
    ratio, bound, *rest = (tmp_path / "margins").read_text().split()
    assert (float(ratio), float(bound)) == (pytest.approx(0.5, abs=1e-3), pytest.approx(tolerance(1.0), rel=0.01))
    assert rest[-1] == "half"


def product() -> tuple[torch.Tensor, torch.Tensor]:
    """Return two random float32 matrices whose products are sums of 512 terms."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 512, generator=generator), torch.randn(512, 64, generator=generator)


def test_another_rounding_is_of_the_size_of_rounding_and_within_the_tolerance() -> None:
    a, b = product()
    exact = a.double() @ b.double()
    with OtherRounding():
        moved = a @ b
    assert not torch.equal(moved, a @ b)
    assert_near(moved, exact, roundings=512)
    assert float((moved - exact).abs().max()) > FLOAT32, "a test that passes has met some rounding"


def test_the_same_computation_rounds_the_same_and_its_operands_stay() -> None:
    a, b = product()
    kept = a.clone()
    with OtherRounding():
        first, second = (torch.log_softmax(a @ b, -1).sum() for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(a, kept)


def test_what_every_processor_computes_exactly_stays() -> None:
    mask = torch.tensor([1.0, 0.0, 1.0, 0.5, -math.inf])
    with OtherRounding():
        assert torch.equal(mask[:4].sum(), torch.tensor(2.5))
        assert torch.equal(torch.exp(torch.zeros(3)), torch.ones(3))
        assert torch.equal(torch.full((3,), 0.7).double().sum(), torch.full((3,), 0.7).double().sum())
    moved = mask.clone()
    move(moved)
    assert torch.equal(moved, mask)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_numbers_move_by_one_unit_up_and_down(dtype: torch.dtype) -> None:
    before = torch.rand(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).add(1.0).to(dtype)
    after = before.clone()
    move(after)
    units = (after.double() - before.double()) / torch.finfo(dtype).eps
    assert {-1.0, 1.0} <= set(units.tolist()) <= {-1.0, 0.0, 1.0}
    share = float((units != 0).double().mean())
    assert (0.05 < share < 0.2) if dtype == torch.bfloat16 else share > 0.98


@pytest.mark.parametrize("wrong", ["a dropped term", "another temperature", "a wrong row"])
def test_a_wrong_computation_is_rejected_by_a_wide_factor(wrong: str) -> None:
    a, b = product()
    logits = (a @ b)[:, :FEW] / 10
    exact = torch.log_softmax(logits.double() / 0.7, -1)
    assert_near(torch.log_softmax(logits / 0.7, -1), exact)
    found = {
        "a dropped term": torch.log_softmax((a[:, 1:] @ b[1:])[:, :FEW] / 10 / 0.7, -1),
        "another temperature": torch.log_softmax(logits / 0.701, -1),
        "a wrong row": torch.log_softmax(logits.roll(1, 0) / 0.7, -1),
    }[wrong]
    assert float((found - exact).abs().max()) > 100 * tolerance(exact)
