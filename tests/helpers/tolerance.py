"""How far a floating-point result may be from the exact one: by dtype, magnitude and number of roundings.

A rounding errs by at most half a unit, ``u = eps / 2`` of the number rounded. The roundings of a computation have either
sign, so ``n`` of them add up like a random walk: Higham and Mary (2019, theorem 2.4) bound the error of a sum of ``n`` terms by
``L sqrt(n) u`` of the sum of their magnitudes, except with a probability of ``2 exp(-L**2 / 2)``. `tolerance` takes ``L = 4``
(a probability of 7e-4, for a bound that real sums stay far below) and the largest number in place of the sum:

    ``4 * sqrt(roundings) * eps / 2 * magnitude``

The order of the roundings depends on the processor: AVX2, AVX-512 and AMX kernels add in different orders. Their number does
not, so the bound holds on all of them.

What a test states:

* ``dtype``: the one that is computed in, not the one that the numbers are compared in.
* ``roundings``: `FEW` for functions of a row of numbers, `MODEL` for passes through the tests' tiny models, 1 for a result that
  is computed in more bits and stored in ``dtype``.
* ``magnitude``: the size of the numbers that the roundings are of, where it is not that of the result. A loss of 0.07 may be
  the difference of two near 1; a log probability is a difference of logits (`LOGITS`), whatever the size of the vocabulary
  adds to it. The default is the largest expected number, and at least 1.

Set ``TESTS_MARGINS`` to a file to get a line for each comparison: error over tolerance, the tolerance, the test.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import torch

FEW = 64
"""Roundings of a function of up to 64 numbers; 16 units of float32, 1.9e-6."""
MODEL = 1800
"""Roundings through a tiny model: 500 additions in each of two layers (width 64, feed-forward 128), 800 in head and softmax.

Of float32, 1.0e-5. It holds for gradients too: a backward pass has as many again, and the bound has room for a factor of 1.4.
"""
LOGITS = 4.0
"""Of the tiny models with random weights, divided by the tests' temperatures."""
LAMBDA = 4.0


def tolerance(
    expected: Any, *, dtype: torch.dtype = torch.float32, roundings: int = FEW, magnitude: float | None = None
) -> float:
    """Return the largest error that rounding explains, for a number, a tensor, or lists and mappings of them."""
    if magnitude is None:
        magnitude = max([1.0, *(float(value.abs().max()) for value in _tensors(expected) if value.numel())])
    return LAMBDA * math.sqrt(roundings) * torch.finfo(dtype).eps / 2 * magnitude


def assert_near(
    actual: Any,
    expected: Any,
    *,
    dtype: torch.dtype = torch.float32,
    roundings: int = FEW,
    magnitude: float | None = None,
    what: str = "",
) -> None:
    """Fail unless ``actual`` differs from ``expected`` by rounding only.

    Both are numbers, tensors, or lists and mappings of the same structure and shapes. All numbers of ``expected`` have one
    tolerance, from the largest of them.

    Raises:
        AssertionError: for other shapes or keys, a NaN, or an error above `tolerance`; names the error and the tolerance.
    """
    if isinstance(expected, Mapping):
        assert set(actual) == set(expected), f"{what} {set(actual) ^ set(expected)} are on one side only"
        actual = [actual[name] for name in expected]
    mine, right = _tensors(actual), _tensors(expected)
    shapes = [tuple(value.shape) for value in mine], [tuple(value.shape) for value in right]
    assert shapes[0] == shapes[1], f"{what} shapes differ: {shapes}"
    bound = tolerance(right, dtype=dtype, roundings=roundings, magnitude=magnitude)
    errors = [(one - other).abs().max() for one, other in zip(mine, right, strict=True) if one.numel()]
    error = float(torch.stack(errors).max()) if errors else 0.0
    _record(error / bound, bound, what)
    assert error <= bound, f"{what} differs by {error:.3g}; rounding explains {bound:.3g}"


def _tensors(value: Any) -> list[torch.Tensor]:
    """All tensors of ``value`` in float64; a number, and a list of numbers, is one."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple) and any(isinstance(part, torch.Tensor | list | tuple) for part in value):
        return [tensor for part in value for tensor in _tensors(part)]
    return [torch.as_tensor(value).detach().double()]


def _record(ratio: float, bound: float, what: str) -> None:
    if path := os.environ.get("TESTS_MARGINS"):
        test = os.environ.get("PYTEST_CURRENT_TEST", "?").removesuffix(" (call)")
        with open(path, "a") as file:
            file.write(f"{ratio:.4f} {bound:.3g} {test} {what}\n")
