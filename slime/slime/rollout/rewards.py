"""Turn the rewards of samples into the numbers that the advantage estimator broadcasts. Pure.

* ``grpo``, ``gspo`` and ``cispo`` with reward normalisation give a group of at least two samples mean zero, and unit
  deviation unless ``grpo_std_normalization`` is off. Equal rewards become zero. A group of one keeps its reward,
  because it has nothing to compare with and zero would drop it silently.
* ``reinforce_plus_plus_baseline`` subtracts the group mean.
* All other estimators get the raw reward.

With ``--dynamic-history`` the members of a group are its trajectories: all samples of one get the reward of its first.

A trajectory, or rollout, is an agent's run, cut into a sample per step or per branch. Samples with the same
``rollout_id`` belong together; without one, samples with the same group and the same index do. Every other sample is
a rollout of its own.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence

from slime.args import Arguments
from slime.utils.misc import load_function
from slime.utils.types import Sample

GROUP_RELATIVE = ("grpo", "gspo", "cispo")
CONSTANT = 1e-12
_EPSILON = 1e-6


def post_process_rewards(args: Arguments, samples: Sequence[Sample]) -> tuple[list[float], list[float]]:
    """Return (raw rewards, rewards to train on), one each per sample."""
    if args.custom_reward_post_process_path:
        raw, rewards = load_function(args.custom_reward_post_process_path)(args, list(samples))
        if not len(raw) == len(rewards) == len(samples):
            counts = f"{len(raw)} and {len(rewards)} values for {len(samples)} samples"
            raise ValueError(f"{args.custom_reward_post_process_path} returned {counts}")
        return list(map(float, raw)), list(map(float, rewards))
    raw = [_reward(args, sample) for sample in samples]
    estimator = args.advantage_estimator
    if estimator in GROUP_RELATIVE and args.rewards_normalization:
        scale = args.grpo_std_normalization
    elif estimator == "reinforce_plus_plus_baseline":
        scale = False
    else:
        return raw, list(raw)
    rewards = list(raw)
    for members in _groups(args, samples).values():
        values = [raw[pieces[0]] for pieces in members]
        for value, pieces in zip(compared(values, scale=bool(scale)), members, strict=True):
            for index in pieces:
                rewards[index] = value
    return raw, rewards


def compared(values: Sequence[float], *, scale: bool = True) -> list[float]:
    """Return the rewards of one group with mean zero, and with unit deviation if ``scale``; one alone stays as it is."""
    if len(values) < 2:
        return list(values)
    mean = statistics.fmean(values)
    divisor = statistics.stdev(values) + _EPSILON if scale else 1.0
    return [(value - mean) / divisor for value in values]


def trajectory_reward(outcome: float, scores: Sequence[float | None], coefficient: float) -> float:
    """Return a trajectory's reward ``o + c * mean(s)`` from its outcome and the scores of its steps; None: not scored."""
    known = [score for score in scores if score is not None]
    return outcome + coefficient * statistics.fmean(known) if known else outcome


def constant_groups(args: Arguments, samples: Sequence[Sample]) -> list[float]:
    """Return the reward of each group of two or more equal rewards, which gives a group-relative estimator no gradient."""
    found = []
    for members in _groups(args, samples).values():
        values = [_reward(args, samples[pieces[0]]) for pieces in members]
        if len(values) >= 2 and max(values) - min(values) <= CONSTANT:
            found.append(values[0])
    return found


def _groups(args: Arguments, samples: Sequence[Sample]) -> dict[Hashable, list[list[int]]]:
    """Return the members of each group: sample indices, or with ``--dynamic-history`` those of each trajectory."""
    numbers = rollout_ids(samples) if args.dynamic_history else range(len(samples))
    groups: dict[Hashable, dict[int, list[int]]] = defaultdict(dict)
    for index, (sample, number) in enumerate(zip(samples, numbers, strict=True)):
        groups[_group_key(sample)].setdefault(number, []).append(index)
    return {key: list(members.values()) for key, members in groups.items()}


def _group_key(sample: Sample) -> Hashable:
    return -1 if sample.group_index is None else sample.group_index


def _reward(args: Arguments, sample: Sample) -> float:
    value = sample.get_reward_value(args)
    if value is None:
        raise ValueError(f"sample {sample.index} has no reward; give it one, or set remove_sample and reward 0.0")
    return float(value)


def rollout_ids(samples: Sequence[Sample]) -> list[int]:
    """Return a number per sample, counted from 0 in order of appearance and shared by the samples of one rollout."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(_key(sample, position), len(numbers)) for position, sample in enumerate(samples)]


def _key(sample: Sample, position: int) -> Hashable:
    if sample.rollout_id is not None:
        return ("rollout", sample.rollout_id)
    if sample.group_index is not None and sample.index is not None:
        return ("sample", sample.group_index, sample.index)
    return ("alone", position)


def mask_sums(ids: Sequence[int], masks: Sequence[Sequence[int]]) -> list[int]:
    """Return per sample the unmasked tokens of its whole rollout."""
    sums: dict[int, int] = defaultdict(int)
    for number, mask in zip(ids, masks, strict=True):
        sums[number] += sum(mask)
    return [sums[number] for number in ids]
