"""Reject tokens or sequences on which engine and trainer disagree too much.

``w_t = pi_old(a_t) / pi_rollout(a_t)``. Inside the band ``[--tis-clip-low, --tis-clip]`` a token's loss is weighted by ``w_t``.
Outside it is zero. No weight exceeds ``--tis-clip``.

* :func:`icepop_function` judges each token by ``w_t``. Tokens outside stay in the denominator.
* :func:`token_rejection` also judges each token by ``w_t``, and masks the tokens outside, so that the mean excludes them.
* :func:`sequence_rejection` judges and masks each sequence by the geometric mean of its ratios, which does not shrink with
  length. A token of an accepted sequence may be outside the band, so its weight is truncated to ``--tis-clip`` (Liu et al., "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch", 2025).

Use: ``--use-tis --custom-tis-function-path slime.algorithms.losses.rejection.sequence_rejection``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from slime.algorithms.losses.reduce import sequence_mean
from slime.args import Arguments
from slime.utils.ppo_utils import bounded_ratio

Correction = tuple[Tensor, list[Tensor], dict[str, Tensor]]


def log_ratios(train: Sequence[Tensor], rollout: Sequence[Tensor]) -> list[Tensor]:
    """Return ``log w`` ``[R_i]`` per sample, without gradient."""
    return [(old - sampled).detach() for old, sampled in zip(train, rollout, strict=True)]


def weigh_inside(args: Arguments, pg_loss: Tensor, own: Sequence[Tensor], judged: Sequence[Tensor]) -> Correction:
    """Return the weighted losses ``[sum R_i]``, which tokens are inside ``[R_i]``, and metrics per token.

    A loss is multiplied by ``min(w, --tis-clip)`` inside the band and by 0 outside. ``own`` are the tokens' log ratios;
    ``judged`` are the log ratios that are compared with the band. The metrics have the ratios before truncation.
    """
    kept = [(d.exp() >= args.tis_clip_low) & (d.exp() <= args.tis_clip) for d in judged]
    ratio, inside = bounded_ratio(torch.cat(list(own))), torch.cat(kept)
    weight = ratio.clamp(max=args.tis_clip)
    metrics = {"tis": ratio, "tis_abs": (ratio - 1.0).abs(), "tis_clipfrac": (~inside).float()}
    return pg_loss * torch.where(inside, weight, torch.zeros_like(weight)), kept, metrics


def icepop_function(
    *,
    args: Arguments,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    **lengths: Any,
) -> Correction:
    """Return the weighted losses ``[sum R_i]``, the unchanged masks, and the metrics per token.

    IcePop: a token has no loss if the trainer's and the engine's probability of it differ too much.

    The weight is ``w_t = pi_old(a_t) / pi_rollout(a_t)`` inside ``[--tis-clip-low, --tis-clip]``, else 0 (Ling team,
    "Small Leak Can Sink a Great Ship: Boost RL Training on MoE with IcePop", 2025). Tokens outside stay in the
    denominator. Use: ``--use-tis --custom-tis-function-path slime.algorithms.losses.rejection.icepop_function``.
    """
    ratios = log_ratios(train_log_probs, rollout_log_probs)
    losses, _, metrics = weigh_inside(args, pg_loss, ratios, ratios)
    return losses, list(loss_masks), metrics


def token_rejection(**given: Any) -> Correction:
    """Return the weighted losses ``[sum R_i]``, masks without the tokens outside the band, and metrics per token.

    Takes the keywords that :mod:`slime.algorithms.losses.policy_loss` lists.
    """
    ratios = log_ratios(given["train_log_probs"], given["rollout_log_probs"])
    return _reject(given, ratios, ratios)


def sequence_rejection(**given: Any) -> Correction:
    """Return the weighted losses ``[sum R_i]``, masks without the sequences outside the band, and metrics per token.

    Takes the keywords that :mod:`slime.algorithms.losses.policy_loss` lists.
    """
    ratios = log_ratios(given["train_log_probs"], given["rollout_log_probs"])
    means = sequence_mean(ratios, given["loss_masks"])
    return _reject(given, ratios, [mean.expand_as(row) for mean, row in zip(means, ratios, strict=True)])


def _reject(given: dict[str, Any], own: Sequence[Tensor], judged: Sequence[Tensor]) -> Correction:
    losses, kept, metrics = weigh_inside(given["args"], given["pg_loss"], own, judged)
    return losses, [mask * keep for mask, keep in zip(given["loss_masks"], kept, strict=True)], metrics
