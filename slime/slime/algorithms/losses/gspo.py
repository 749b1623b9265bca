"""GSPO: one importance ratio per sequence, clipped as a whole.

``s = exp(mean_t (log pi(a_t) - log pi_old(a_t)))`` over the unmasked tokens, and the clipped surrogate of ``s`` and ``A`` for
each of its tokens, so that the sample mean is the sequence's objective (Zheng et al., "Group Sequence Policy Optimization",
2025, equations 5 and 6). A sequence without an unmasked token has ``s = 1``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slime.algorithms.losses.sequence import sequence_mean
from slime.args import Arguments
from slime.utils.ppo_utils import compute_policy_loss


def gspo_surrogate(
    args: Arguments, new: Sequence[Tensor], old: Sequence[Tensor], advantages: Tensor, masks: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the losses ``[sum R_i]`` and 1.0 where the sequence was clipped."""
    differences = [before - now for before, now in zip(old, new, strict=True)]
    ppo_kl = torch.cat(
        [mean.expand_as(d) for mean, d in zip(sequence_mean(differences, masks), differences, strict=True)]
    )
    return compute_policy_loss(ppo_kl, advantages, args.eps_clip, args.eps_clip_high, args.eps_clip_c)
