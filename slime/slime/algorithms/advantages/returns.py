"""Token rewards and their discounted sums, shared by several estimators.

Masked tokens earn nothing. The KL in a reward carries no gradient, unlike the KL *loss* of ``--use-kl-loss``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from slime.args import Arguments
from slime.utils.ppo_utils import compute_approx_kl


def discounted_returns(rewards: Tensor, gamma: float) -> Tensor:
    """Return ``G`` ``[R]`` with ``G_t = r_t + gamma G_{t+1}``, in ``log2(R)`` tensor operations.

    Uses ``1 + x + x^2 + ... = (1 + x)(1 + x^2)(1 + x^4)...``, where the operator ``x`` shifts by one and multiplies by
    ``gamma``.
    """
    returns, shift = rewards.clone(), 1
    while shift < len(rewards):
        returns = torch.cat([returns[:-shift] + gamma**shift * returns[shift:], returns[-shift:]])
        shift *= 2
    return returns


def reference_kl(args: Arguments, rollout: dict[str, Any]) -> list[Tensor]:
    """Return masked KL estimates ``[R_i]`` per sample.

    They are zero with ``--kl-coef 0``, which needs no reference model.
    """
    masks = rollout["loss_masks"]
    if args.kl_coef == 0:
        return [torch.zeros(len(mask), dtype=torch.float32) for mask in masks]
    streams = zip(rollout["log_probs"], rollout["ref_log_probs"], masks, strict=True)
    return [compute_approx_kl(old, ref, args.kl_loss_type) * mask for old, ref, mask in streams]


def token_rewards(args: Arguments, reward: float, kl: Tensor, mask: Tensor) -> Tensor:
    """Return the token rewards ``[R]`` float64 of a sample.

    Token t earns ``- kl_coef * KL_t``. The last unmasked token also earns ``reward``. A sample without an unmasked token
    does not get its reward.

    ``KL_t`` compares the old policy to the reference with an estimator of :func:`slime.utils.ppo_utils.compute_approx_kl`
    (Ouyang et al., "Training language models to follow instructions with human feedback", 2022). It carries no gradient,
    unlike the KL *loss* of ``--use-kl-loss``. Masked tokens have ``KL_t = 0``.
    """
    rewards = -args.kl_coef * kl.double()
    kept = mask.nonzero()
    if len(kept):
        rewards[kept[-1]] += float(reward)
    return rewards
