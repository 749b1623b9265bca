"""Rewards of tokens and their discounted sums, which several estimators start from.

Tokens under a zero mask earn nothing; the KL in a reward carries no gradient, which the KL *loss* of ``--use-kl-loss`` does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from slime.args import Arguments
from slime.utils.ppo_utils import compute_approx_kl


def discounted_returns(rewards: Tensor, gamma: float) -> Tensor:
    """Return ``G`` ``[R]`` with ``G_t = r_t + gamma G_{t+1}``, in ``log2(R)`` steps over the whole tensor.

    ``1 + x + x^2 + ... = (1 + x)(1 + x^2)(1 + x^4)...`` for the operator ``x``: shift by one and multiply by ``gamma``.
    """
    returns, shift = rewards.clone(), 1
    while shift < len(rewards):
        returns = torch.cat([returns[:-shift] + gamma**shift * returns[shift:], returns[-shift:]])
        shift *= 2
    return returns


def reference_kl(args: Arguments, rollout: dict[str, Any]) -> list[Tensor]:
    """Return the masked estimates ``[R_i]`` per sample; zeros with ``--kl-coef 0``, which needs no reference."""
    masks = rollout["loss_masks"]
    if args.kl_coef == 0:
        return [torch.zeros(len(mask), dtype=torch.float32) for mask in masks]
    streams = zip(rollout["log_probs"], rollout["ref_log_probs"], masks, strict=True)
    return [compute_approx_kl(old, ref, args.kl_loss_type) * mask for old, ref, mask in streams]


def token_rewards(args: Arguments, reward: float, kl: Tensor, mask: Tensor) -> Tensor:
    """Return ``[R]`` float64 rewards of a sample's tokens: ``- kl_coef * KL_t``, and ``reward`` on its last unmasked token.

    KL to the reference as part of the reward: token t earns ``- kl_coef * KL_t`` besides what the sample earns.

    ``KL_t`` is one of the estimators of :func:`slime.utils.ppo_utils.compute_approx_kl` of the old policy against the
    reference (Ouyang et al., "Training language models to follow instructions with human feedback", 2022). It carries
    no gradient; the KL *loss* of ``--use-kl-loss`` does. Tokens under a zero mask earn nothing.

    A sample without an unmasked token has none to put its reward on.
    """
    rewards = -args.kl_coef * kl.double()
    kept = mask.nonzero()
    if len(kept):
        rewards[kept[-1]] += float(reward)
    return rewards
