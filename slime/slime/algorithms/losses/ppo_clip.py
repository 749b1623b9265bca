"""PPO's clipped surrogate of the token's own ratio, for every estimator without a surrogate of its own.

The formula and its source are in :func:`slime.utils.ppo_utils.compute_policy_loss`, which plugins call too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slime.args import Arguments
from slime.utils.ppo_utils import compute_policy_loss


def ppo_clip_surrogate(
    args: Arguments, new: Sequence[Tensor], old: Sequence[Tensor], advantages: Tensor, masks: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the losses ``[sum R_i]`` and 1.0 where the clipped branch was taken."""
    ppo_kl = torch.cat(list(old)) - torch.cat(list(new))
    return compute_policy_loss(ppo_kl, advantages, args.eps_clip, args.eps_clip_high, args.eps_clip_c)
