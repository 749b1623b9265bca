"""IcePop: a token whose two probabilities, trainer's and engine's, are too far apart has no loss.

``w_t = pi_old(a_t) / pi_rollout(a_t)`` where that lies in ``[--tis-clip-low, --tis-clip]``, else 0 (Ling team, "Small Leak Can
Sink a Great Ship: Boost RL Training on MoE with IcePop", 2025). Tokens outside stay in the denominator.
Use: ``--use-tis --custom-tis-function-path slime.algorithms.losses.icepop.icepop_function``.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

import torch
from torch import Tensor


def icepop_function(
    *,
    args: Namespace,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    """Return the weighted losses ``[sum R_i]``, the masks as they were, and the metrics per token."""
    ratio = torch.exp(torch.cat(list(train_log_probs)) - torch.cat(list(rollout_log_probs))).detach()
    inside = (ratio >= args.tis_clip_low) & (ratio <= args.tis_clip)
    metrics = {"tis": ratio, "tis_abs": (ratio - 1.0).abs(), "tis_clipfrac": (~inside).float()}
    return pg_loss * torch.where(inside, ratio, torch.zeros_like(ratio)), list(loss_masks), metrics
