"""Discounted sums over a response, without a loop over its tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def discounted_returns(rewards: Tensor, gamma: float) -> Tensor:
    """Return ``G`` ``[R]`` with ``G_t = r_t + gamma G_{t+1}``, in ``log2(R)`` steps over the whole tensor.

    ``1 + x + x^2 + ... = (1 + x)(1 + x^2)(1 + x^4)...`` for the operator ``x``: shift by one and multiply by ``gamma``.
    """
    returns, shift = rewards.clone(), 1
    while shift < len(rewards):
        returns = torch.cat([returns[:-shift] + gamma**shift * returns[shift:], returns[-shift:]])
        shift *= 2
    return returns
