"""CISPO: REINFORCE with a clipped importance weight, so that a clipped token keeps a gradient.

``L_t = - sg(clip(r_t, 1 - eps_clip, 1 + eps_clip_high)) A_t log pi(a_t)`` with ``r = pi / pi_old`` and ``sg`` the stopped
gradient (MiniMax, "MiniMax-M1", 2025, equation 4). Their runs leave the lower bound open: ``--eps-clip 1``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slime.args import Arguments


def cispo_surrogate(
    args: Arguments, new: Sequence[Tensor], old: Sequence[Tensor], advantages: Tensor, masks: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the losses ``[sum R_i]`` and 1.0 where the weight was clipped."""
    log_probs = torch.cat(list(new))
    ratio = torch.exp(log_probs.detach() - torch.cat(list(old)))
    weight = ratio.clamp(1.0 - args.eps_clip, 1.0 + args.eps_clip_high)
    return -weight * advantages * log_probs, (weight != ratio).float()
