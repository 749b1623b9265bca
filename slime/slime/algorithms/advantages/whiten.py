"""Advantages with mean zero and variance one over the unmasked tokens of a rollout, on all ranks together.

``A_t <- (A_t - mean) / sqrt(var + 1e-8)``, with the unbiased variance (``n - 1``). Guarantees: every rank gets the same
statistics, whatever samples it holds; sums are float64, and the variance is taken around the mean in a second pass. Equal
advantages become zero. With fewer than two unmasked tokens there is nothing to compare and the values stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_EPSILON = 1e-8

SumOverRanks = Callable[[Tensor], Tensor]


def on_one_rank(values: Tensor) -> Tensor:
    """The sum over the ranks when there is only this one: ``values``."""
    return values


def whiten(advantages: Sequence[Tensor], masks: Sequence[Tensor], sum_over_ranks: SumOverRanks) -> list[Tensor]:
    """Return whitened ``[R_i]`` float32 per sample; masked tokens are shifted and scaled like the others.

    ``sum_over_ranks`` adds a float64 tensor up over the data-parallel ranks; all of them must call this together.
    """
    pairs = [(values.double(), mask.double()) for values, mask in zip(advantages, masks, strict=True)]
    sums = [torch.stack([(values * mask).sum(), mask.sum()]) for values, mask in pairs]
    total, count = sum_over_ranks(torch.stack([torch.zeros(2, dtype=torch.float64), *sums]).sum(0)).tolist()
    mean = total / max(count, 1.0)
    squares = [((values - mean).square() * mask).sum() for values, mask in pairs]
    deviation = float(sum_over_ranks(torch.stack([torch.zeros((), dtype=torch.float64), *squares]).sum()))
    if count < 2:
        return list(advantages)
    scale = (deviation / (count - 1) + _EPSILON) ** -0.5
    return [((values - mean) * scale).float() for values, _ in pairs]
