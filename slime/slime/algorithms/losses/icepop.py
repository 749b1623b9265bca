"""IcePop: a token whose two probabilities, trainer's and engine's, are too far apart has no loss.

``w_t = pi_old(a_t) / pi_rollout(a_t)`` where that lies in ``[--tis-clip-low, --tis-clip]``, else 0 (Ling team, "Small Leak Can
Sink a Great Ship: Boost RL Training on MoE with IcePop", 2025). Tokens outside stay in the denominator.
Use: ``--use-tis --custom-tis-function-path slime.algorithms.losses.icepop.icepop_function``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from slime.algorithms.losses.band import Correction, log_ratios, weigh_inside
from slime.args import Arguments


def icepop_function(
    *,
    args: Arguments,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    **lengths: Any,
) -> Correction:
    """Return the weighted losses ``[sum R_i]``, the masks as they were, and the metrics per token."""
    ratios = log_ratios(train_log_probs, rollout_log_probs)
    losses, _, metrics = weigh_inside(args, pg_loss, ratios, ratios)
    return losses, list(loss_masks), metrics
