"""REINFORCE++: discounted returns of a per-token reward, whitened over the whole batch instead of within groups.

``r_t = - kl_coef * KL_t``, plus the sample's reward on its last unmasked token; ``A_t = sum_{s >= t} gamma^(s - t) r_s``
(Hu, "REINFORCE++: A Simple and Efficient Approach for Aligning Large Language Models", 2025). ``s - t`` counts response
tokens, masked ones too. The whitening is ``--normalize-advantages``, without which this estimator is refused. A sample
without an unmasked token has advantage zero.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from torch import Tensor


def reinforce_plus_plus(args: Namespace, rollout: dict[str, Any]) -> list[Tensor]:
    """Return ``[R_i]`` float32 per sample from ``rewards``, ``kl`` and ``loss_masks``."""
    returns = []
    for reward, kl, mask in zip(rollout["rewards"], rollout["kl"], rollout["loss_masks"], strict=True):
        rewards = -args.kl_coef * kl.double()
        kept = mask.nonzero()
        if len(kept):
            rewards[kept[-1]] += float(reward)
        returns.append(discounted_returns(rewards, args.gamma).float())
    return returns


def discounted_returns(rewards: Tensor, gamma: float) -> Tensor:
    """Return ``G`` ``[R]`` with ``G_t = r_t + gamma G_{t+1}``, in ``log2(R)`` steps over the whole tensor.

    ``1 + x + x^2 + ... = (1 + x)(1 + x^2)(1 + x^4)...`` for the operator ``x``: shift by one and multiply by ``gamma``.
    """
    returns, shift = rewards.clone(), 1
    while shift < len(rewards):
        returns = torch.cat([returns[:-shift] + gamma**shift * returns[shift:], returns[-shift:]])
        shift *= 2
    return returns
