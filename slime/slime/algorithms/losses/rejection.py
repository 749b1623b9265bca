"""Masked importance sampling: what the engine and the trainer disagree about is taken out of the batch.

Inside ``[--tis-clip-low, --tis-clip]`` the loss is weighted by the token's ratio ``w_t = pi_old(a_t) / pi_rollout(a_t)``;
outside, the mask becomes 0, so the rest is averaged as if it had not been there. :func:`token_rejection` judges each token by
``w_t``, :func:`sequence_rejection` each sequence by the geometric mean of its ratios, which does not shrink with length
(Liu et al., "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch", 2025).
Use: ``--use-tis --custom-tis-function-path slime.algorithms.losses.rejection.sequence_rejection``.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

import torch
from torch import Tensor

from slime.algorithms.losses.sequence import sequence_mean

Correction = tuple[Tensor, list[Tensor], dict[str, Tensor]]


def token_rejection(
    *,
    args: Namespace,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
) -> Correction:
    """Return the weighted losses ``[sum R_i]``, masks without the tokens outside the bounds, and metrics per token."""
    differences = _differences(train_log_probs, rollout_log_probs)
    return _reject(args, pg_loss, differences, differences, loss_masks)


def sequence_rejection(
    *,
    args: Namespace,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
) -> Correction:
    """Return the weighted losses ``[sum R_i]``, masks without the sequences outside the bounds, and metrics per token."""
    differences = _differences(train_log_probs, rollout_log_probs)
    means = sequence_mean(differences, loss_masks)
    judged = [mean.expand_as(d) for mean, d in zip(means, differences, strict=True)]
    return _reject(args, pg_loss, differences, judged, loss_masks)


def _differences(train: Sequence[Tensor], rollout: Sequence[Tensor]) -> list[Tensor]:
    return [(old - sampled).detach() for old, sampled in zip(train, rollout, strict=True)]


def _reject(
    args: Namespace, pg_loss: Tensor, differences: list[Tensor], judged: list[Tensor], masks: Sequence[Tensor]
) -> Correction:
    kept = [(d.exp() >= args.tis_clip_low) & (d.exp() <= args.tis_clip) for d in judged]
    ratio = torch.exp(torch.cat(differences))
    metrics = {"tis": ratio, "tis_abs": (ratio - 1.0).abs(), "tis_clipfrac": (~torch.cat(kept)).float()}
    weights = torch.where(torch.cat(kept), ratio, torch.zeros_like(ratio))
    return pg_loss * weights, [mask * keep for mask, keep in zip(masks, kept, strict=True)], metrics
