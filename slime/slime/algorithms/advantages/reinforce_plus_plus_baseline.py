"""REINFORCE++ with a group baseline: ``A_t = (r - mean of the group) - kl_coef * KL_t``, whitened over the whole batch.

(Hu, "REINFORCE++", 2025, the variant for several replies per prompt.) The mean was subtracted where the rewards were
collected; a group of one keeps its reward. The whitening is ``--normalize-advantages``, without which this estimator is
refused.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from slime.args import Arguments


def reinforce_plus_plus_baseline(args: Arguments, rollout: dict[str, Any]) -> list[Tensor]:
    """Return ``[R_i]`` float32 per sample from the centred ``rewards`` and ``kl``."""
    return [float(reward) - args.kl_coef * kl for reward, kl in zip(rollout["rewards"], rollout["kl"], strict=True)]
