"""Step-wise credit: the tokens of an agent's step have the standardised score of that step, all others have 0.

``A_t = (R_k - mean) / deviation`` for the tokens ``t`` of step ``k``, over the steps with the same index in the task group;
``R_k`` holds the outcome and the process reward (OpenClaw-RL, arXiv 2603.10165, general agents). The scores were
standardised where they were collected (:mod:`slime.rollout.step_wise`) and are not whitened again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from slime.args import Arguments


def step_wise(args: Arguments, rollout: dict[str, Any]) -> list[Tensor]:
    """Return ``[R_i]`` float32 per sample from the steps' rewards and spans; 0 under a zero mask."""
    rewards, spans = rollout.get("step_wise_step_rewards"), rollout.get("step_wise_step_token_spans")
    if rewards is None or spans is None:
        raise ValueError(
            "--advantage-estimator step_wise needs step_wise_step_rewards and step_wise_step_token_spans in the training "
            "data: the function of --custom-convert-samples-to-train-data-path must return them"
        )
    advantages = []
    for values, places, mask in zip(rewards, spans, rollout["loss_masks"], strict=True):
        advantage = torch.zeros(len(mask), dtype=torch.float32)
        for value, (start, end) in zip(values, places, strict=True):
            advantage[start:end] = value
        advantages.append(advantage * mask)
    return advantages
