"""Built-in ``--dynamic-sampling-filter-path``: replace groups without a learning signal."""

from __future__ import annotations

from typing import Any

from slime.args import Arguments
from slime.rollout.filter_hub.base_types import DynamicFilterOutput
from slime.rollout.metrics import flatten
from slime.rollout.rewards import CONSTANT


def check_reward_nonzero_std(args: Arguments, group: list[Any], **kwargs: Any) -> DynamicFilterOutput:
    """Drop a group of two or more whose rewards are all equal, as in DAPO (arXiv:2503.14476, dynamic sampling).

    A group of one is kept, because nothing can be compared. A group with an unrewarded sample is kept too.
    """
    rewards = [sample.get_reward_value(args) for sample in flatten(group) if sample.reward is not None]
    if len(rewards) < 2 or max(rewards) - min(rewards) > CONSTANT:
        return DynamicFilterOutput(keep=True)
    return DynamicFilterOutput(keep=False, reason=f"zero_std_{round(rewards[0], 1)}")
