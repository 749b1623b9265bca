"""How a per-token quantity of a micro-batch becomes one number that adds up over micro-batches and ranks.

Two reductions: the sum over samples of the masked token mean (then divided by the number of samples of the step), and the
masked token sum (then divided by the number of unmasked tokens of the step). A sample whose mask is all zero adds zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Reducer = Callable[[Tensor], Tensor]


def sum_of_sample_mean(response_lengths: Sequence[int], loss_masks: Sequence[Tensor]) -> Reducer:
    """Return ``f(x [sum R_i]) = sum_i (sum_t m_it x_it) / max(1, sum_t m_it)``."""

    def reduce(values: Tensor) -> Tensor:
        parts = values.split(list(response_lengths))
        masks = [mask.to(values) for mask in loss_masks]
        means = [(part * mask).sum() / mask.sum().clamp_min(1.0) for part, mask in zip(parts, masks, strict=True)]
        return torch.stack(means).sum() if means else values.sum()

    return reduce


def token_sum(response_lengths: Sequence[int], loss_masks: Sequence[Tensor]) -> Reducer:
    """Return ``f(x [sum R_i]) = sum_it m_it x_it``, for the mean over the tokens of the step."""

    def reduce(values: Tensor) -> Tensor:
        if values.numel() != sum(response_lengths):
            raise ValueError(f"got {values.numel()} values for responses of {sum(response_lengths)} tokens together")
        if not loss_masks:
            return values.sum()
        return (values * torch.cat([mask.to(values) for mask in loss_masks])).sum()

    return reduce


def make_reducer(per_token: bool, response_lengths: Sequence[int], loss_masks: Sequence[Tensor]) -> Reducer:
    """Return :func:`token_sum` for ``--calculate-per-token-loss``, else :func:`sum_of_sample_mean`."""
    return (token_sum if per_token else sum_of_sample_mean)(response_lengths, loss_masks)
