"""Compute the surrogates of gspo and cispo.

Other estimators use :func:`slime.utils.ppo_utils.compute_policy_loss`. A surrogate is ``(args, new, old, advantages,
masks) -> (losses [sum R_i], 1.0 where it clipped)``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slime.algorithms.losses.reduce import sequence_mean
from slime.args import Arguments
from slime.utils.ppo_utils import bounded_ratio, compute_policy_loss


def gspo_surrogate(
    args: Arguments, new: Sequence[Tensor], old: Sequence[Tensor], advantages: Tensor, masks: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the losses ``[sum R_i]`` and 1.0 where the sequence was clipped.

    GSPO: one importance ratio per sequence, clipped as a whole.

    ``s = exp(mean_t (log pi(a_t) - log pi_old(a_t)))`` over the unmasked tokens. Each token gets the clipped surrogate of
    ``s`` and ``A``, so that the sample mean is the sequence's objective (Zheng et al., "Group Sequence Policy
    Optimization", 2025, equations 5 and 6). A sequence without an unmasked token has ``s = 1``.
    """
    differences = [before - now for before, now in zip(old, new, strict=True)]
    ppo_kl = torch.cat(
        [mean.expand_as(d) for mean, d in zip(sequence_mean(differences, masks), differences, strict=True)]
    )
    return compute_policy_loss(ppo_kl, advantages, args.eps_clip, args.eps_clip_high, args.eps_clip_c)


def cispo_surrogate(
    args: Arguments, new: Sequence[Tensor], old: Sequence[Tensor], advantages: Tensor, masks: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the losses ``[sum R_i]`` and 1.0 where the weight was clipped.

    CISPO: REINFORCE with a clipped importance weight, so that a clipped token keeps a gradient.

    ``L_t = - sg(clip(r_t, 1 - eps_clip, 1 + eps_clip_high)) A_t log pi(a_t)`` with ``r = pi / pi_old`` and ``sg`` the
    stop-gradient (MiniMax, "MiniMax-M1", 2025, equation 4). The paper sets no lower bound: ``--eps-clip 1``.
    """
    log_probs = torch.cat(list(new))
    ratio = bounded_ratio(log_probs.detach() - torch.cat(list(old)))
    weight = ratio.clamp(1.0 - args.eps_clip, 1.0 + args.eps_clip_high)
    return -weight * advantages * log_probs, (weight != ratio).float()
