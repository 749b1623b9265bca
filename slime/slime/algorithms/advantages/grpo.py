"""GRPO: the (normalised) reward of a sample is the advantage of each of its response tokens.

``A_t = r`` (Shao et al. 2024, outcome supervision). The group normalisation happened where the rewards were collected.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from slime.args import Arguments


def grpo(args: Arguments, rollout: dict[str, Any]) -> list[Tensor]:
    """Return ``[R_i]`` float32 per sample from ``rewards`` and ``response_lengths``."""
    pairs = zip(rollout["rewards"], rollout["response_lengths"], strict=True)
    return [torch.full((length,), float(reward), dtype=torch.float32) for reward, length in pairs]
