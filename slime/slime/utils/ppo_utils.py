"""Elementwise policy-gradient arithmetic that losses and plugins share.

Guarantees: nothing here writes to its arguments. One kernel computes log probabilities in float32 from float32 logits,
so old, new and reference policy differ only where their logits do. The module holds no state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from slime.utils.vocab_parallel import entropy_of_rows, is_split, log_probs_of_ids

KL_TYPES = ("k1", "k2", "k3", "low_var_kl")
# Ratios are between exp(-20) and exp(20), far outside every clip; exp of a float32 above 88.7 would be infinite.
MAX_LOG_RATIO = 20.0


def bounded_ratio(log_ratio: Tensor) -> Tensor:
    """Return ``exp(log_ratio)``, finite with a finite gradient for every input; the gradient is 0 beyond the bound.

    An infinite ratio would make the gradient NaN even where the loss takes a clipped branch or a mask of 0, because
    backward multiplies it by 0.

    >>> bounded_ratio(torch.tensor([0.0, 1000.0])).isfinite().all()
    tensor(True)
    """
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def log_probs_and_entropy(
    logits: Tensor, tokens: Tensor, with_entropy: bool = False, group: Any = None
) -> tuple[Tensor, Tensor | None]:
    """Return the log probability of each token, and the entropy of each row.

    ``log p(t) = z_t - logsumexp(z)`` and ``H = - sum_v p(v) log p(v)``.

    Args:
        logits: ``[R, V]``, already divided by the temperature; a rank's columns ``[R, V/n]`` with a ``group`` of n ranks.
        tokens: ``[R]`` int64.
        with_entropy: also return the entropy ``[R]``; None otherwise.
        group: the tensor-parallel group that the vocabulary is split over; all its ranks must call together.

    Returns:
        ``[R]`` float32 log probabilities and the entropy.
    """
    if is_split(group):
        log_probs = log_probs_of_ids(logits, tokens.unsqueeze(-1), group).squeeze(-1)
        return log_probs, entropy_of_rows(logits, group) if with_entropy else None
    logits = logits.float()
    normaliser = torch.logsumexp(logits, dim=-1)
    log_probs = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - normaliser
    if not with_entropy:
        return log_probs, None
    table = logits - normaliser.unsqueeze(-1)
    weighted = table.exp()
    weighted = weighted * table if table.requires_grad else weighted.mul_(table)
    return log_probs, -weighted.sum(-1)


def compute_log_probs(logits: Tensor, tokens: Tensor, process_group: Any = None) -> Tensor:
    """Return ``[R, 1]`` log probabilities of ``tokens`` ``[R]`` under ``logits`` ``[R, V]``, which stay unchanged.

    ``process_group`` is the tensor-parallel group; with n ranks the logits are this rank's columns ``[R, V/n]``.
    """
    return log_probs_and_entropy(logits, tokens, group=process_group)[0].unsqueeze(-1)


def compute_policy_loss(
    ppo_kl: Tensor,
    advantages: Tensor,
    eps_clip: float,
    eps_clip_high: float,
    eps_clip_c: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return PPO's clipped surrogate (Schulman et al. 2017) with separate bounds and optional dual clip (Ye et al. 2020).

    ``r = exp(-ppo_kl)`` (:func:`bounded_ratio`); ``loss = max(-r A, -clip(r, 1 - eps_clip, 1 + eps_clip_high) A)``; where ``A < 0`` the dual clip
    bounds it by ``-eps_clip_c A``.

    Args:
        ppo_kl: old minus new log probability, any shape.
        advantages: same shape.

    Returns:
        Elementwise losses, and 1.0 where the clipped branch was taken.
    """
    ratio = bounded_ratio(-ppo_kl)
    unclipped = -ratio * advantages
    clipped = -ratio.clamp(1.0 - eps_clip, 1.0 + eps_clip_high) * advantages
    losses = torch.maximum(unclipped, clipped)
    clip_fraction = (clipped > unclipped).float()
    if eps_clip_c is None:
        return losses, clip_fraction
    if eps_clip_c <= 1.0:
        raise ValueError(f"eps_clip_c is {eps_clip_c}; the dual clip needs a value above 1, such as 3.0")
    bounded = torch.minimum(-eps_clip_c * advantages, losses)
    return torch.where(advantages < 0, bounded, losses), clip_fraction


def compute_approx_kl(
    log_probs: Tensor,
    log_probs_base: Tensor,
    kl_loss_type: str,
    importance_ratio: Tensor | None = None,
) -> Tensor:
    """Estimate KL(policy || base) from one sample per token (Schulman, "Approximating KL divergence", 2020).

    With ``d = log_probs - log_probs_base``: k1 ``d``; k2 ``d^2 / 2``; k3 and low_var_kl ``exp(-d) - 1 + d``, the latter
    clamped to [-10, 10]. ``importance_ratio`` (policy over behaviour) multiplies the estimate and makes it unbiased
    off-policy. Elementwise, float32.
    """
    difference = log_probs.float() - log_probs_base.float()
    if kl_loss_type == "k1":
        estimate = difference
    elif kl_loss_type == "k2":
        estimate = difference.square() / 2.0
    elif kl_loss_type == "k3":
        estimate = bounded_ratio(-difference) - 1.0 + difference
    elif kl_loss_type == "low_var_kl":
        estimate = (bounded_ratio(-difference) - 1.0 + difference).clamp(-10.0, 10.0)
    else:
        raise ValueError(f"unknown KL estimator {kl_loss_type!r}: use --kl-loss-type with one of {', '.join(KL_TYPES)}")
    return estimate if importance_ratio is None else importance_ratio * estimate
