"""REINFORCE++: discounted returns of a per-token reward, whitened over the whole batch instead of within groups.

``r_t = - kl_coef * KL_t``, plus the sample's reward on its last unmasked token; ``A_t = sum_{s >= t} gamma^(s - t) r_s``
(Hu, "REINFORCE++: A Simple and Efficient Approach for Aligning Large Language Models", 2025). ``s - t`` counts response
tokens, masked ones too. The whitening is ``--normalize-advantages``, without which this estimator is refused. A sample
without an unmasked token has advantage zero.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from slime.algorithms.advantages.discounted import discounted_returns
from slime.algorithms.advantages.reward_kl import token_rewards
from slime.args import Arguments


def reinforce_plus_plus(args: Arguments, rollout: dict[str, Any]) -> list[Tensor]:
    """Return ``[R_i]`` float32 per sample from ``rewards``, ``kl`` and ``loss_masks``."""
    streams = zip(rollout["rewards"], rollout["kl"], rollout["loss_masks"], strict=True)
    return [discounted_returns(token_rewards(args, *stream), args.gamma).float() for stream in streams]
