"""From the rewards of samples to the numbers that the advantage estimator broadcasts.

Guarantee: pure. For ``grpo``, ``gspo`` and ``cispo`` with reward normalisation a group of at least two samples gets mean zero (and
unit deviation unless ``grpo_std_normalization`` is off); a group of one keeps its reward, because there is nothing to
compare it with and zero would drop it silently. ``reinforce_plus_plus_baseline`` subtracts the group mean. All other
estimators get the raw reward.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections import defaultdict
from collections.abc import Hashable, Sequence

from slime.utils.misc import load_function
from slime.utils.types import Sample

GROUP_RELATIVE = ("grpo", "gspo", "cispo")
_CONSTANT = 1e-12
_EPSILON = 1e-6


def post_process_rewards(args: Namespace, samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """Return (raw rewards, rewards to train on), one each per sample."""
    if getattr(args, "custom_reward_post_process_path", None):
        raw, rewards = load_function(args.custom_reward_post_process_path)(args, list(samples))
        if not len(raw) == len(rewards) == len(samples):
            counts = f"{len(raw)} and {len(rewards)} values for {len(samples)} samples"
            raise ValueError(f"{args.custom_reward_post_process_path} returned {counts}")
        return list(map(float, raw)), list(map(float, rewards))
    raw = [_reward(args, sample) for sample in samples]
    estimator = args.advantage_estimator
    if estimator in GROUP_RELATIVE and args.rewards_normalization:
        scale = getattr(args, "grpo_std_normalization", True)
    elif estimator == "reinforce_plus_plus_baseline":
        scale = False
    else:
        return raw, list(raw)
    rewards = list(raw)
    for members in _groups(samples).values():
        if len(members) < 2:
            continue
        values = [raw[index] for index in members]
        mean = statistics.fmean(values)
        divisor = statistics.stdev(values) + _EPSILON if scale else 1.0
        for index in members:
            rewards[index] = (raw[index] - mean) / divisor
    return raw, rewards


def constant_groups(args: Namespace, samples: Sequence[Sample]) -> int:
    """How many groups of two or more have equal rewards; under a group-relative estimator they carry no gradient."""
    count = 0
    for members in _groups(samples).values():
        values = [_reward(args, samples[index]) for index in members]
        count += len(values) >= 2 and max(values) - min(values) <= _CONSTANT
    return count


def _groups(samples: Sequence[Sample]) -> dict[Hashable, list[int]]:
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        groups[_group_key(sample)].append(index)
    return groups


def _group_key(sample: Sample) -> Hashable:
    return -1 if sample.group_index is None else sample.group_index


def _reward(args: Namespace, sample: Sample) -> float:
    value = sample.get_reward_value(args)
    if value is None:
        raise ValueError(f"sample {sample.index} has no reward; give it one, or set remove_sample and reward 0.0")
    return float(value)
