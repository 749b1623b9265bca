"""Turn the rewards of samples, and the scores of an agent's steps, into what the advantage estimators read. Pure, without torch.

Comparison within a group:

* ``grpo``, ``gspo`` and ``cispo`` with reward normalisation give a group of at least two samples mean zero, and unit
  deviation unless ``grpo_std_normalization`` is off. Equal rewards become zero. A group of one keeps its reward,
  because it has nothing to compare with and zero would drop it silently.
* ``reinforce_plus_plus_baseline`` subtracts the group mean.
* All other estimators get the raw reward.

With ``--dynamic-history`` the members of a group are its trajectories: all samples of one get the reward of its first.
A trajectory, or rollout, is an agent's run, cut into a sample per step or per branch. Samples with the same
``rollout_id`` belong together; without one, samples with the same group and the same index do. Every other sample is
a rollout of its own.

Steps, for ``--advantage-estimator step_wise``: a sample's ``metadata["step_wise"]`` has ``step_scores_with_outcome`` (or
``step_scores``), ``step_token_spans`` (``[start, end)`` in its response) and optionally ``step_indices`` (default 0, 1,
...). With ``--dynamic-history`` a sample without spans is one step: its reward, from the first to the last unmasked
token, index 0. Steps with the same group and index are standardised together: ``(v - mean) / (population deviation +
1e-6)``. Equal scores become 0, and so does a step that no other trajectory of its group reached: its raw score would
push the longest trajectory by the score's sign. A group of one keeps its scores. A sample without an unmasked token has
no steps. Lists that do not match are errors; nothing is cut.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

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
    results = []
    for members in _groups(args, samples).values():
        values = [_reward(args, samples[pieces[0]]) for pieces in members]
        if len(values) >= 2 and max(values) - min(values) <= CONSTANT:
            results.append(values[0])
    return results


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


@dataclass
class Step:
    """One step of a sample: its index, its tokens ``[start, end)`` in the response, and its score."""

    index: int
    start: int
    end: int
    score: float


def step_fields(args: Arguments, samples: Sequence[Sample], masks: Sequence[Sequence[int]]) -> dict[str, list[Any]]:
    """Return the training data of the steps: rewards, spans and indices per sample."""
    steps = [steps_of_sample(args, sample, mask) for sample, mask in zip(samples, masks, strict=True)]
    if args.rewards_normalization:
        groups = [-1 if sample.group_index is None else sample.group_index for sample in samples]
        _standardise(groups, steps)
    return {
        "step_wise_step_rewards": [[step.score for step in result] for result in steps],
        "step_wise_step_token_spans": [[[step.start, step.end] for step in result] for result in steps],
        "step_wise_step_indices": [[step.index for step in result] for result in steps],
    }


def steps_of_sample(args: Arguments, sample: Sample, mask: Sequence[int]) -> list[Step]:
    """Return the steps of one sample with their raw scores.

    Raises:
        ValueError: a sample has no steps, or they do not fit its response; the message names it.
    """
    if not any(mask):
        return []
    result = sample.metadata.get("step_wise") or {}
    spans = result.get("step_token_spans")
    if spans is None and args.dynamic_history:
        kept = [position for position, value in enumerate(mask) if value]
        return [Step(0, kept[0], kept[-1] + 1, float(sample.get_reward_value(args)))]
    scores = result.get("step_scores_with_outcome")
    scores = result.get("step_scores") if scores is None else scores
    where = f'sample {sample.index}: metadata["step_wise"]'
    if spans is None or scores is None:
        raise ValueError(
            f"{where} needs step_scores and step_token_spans for --advantage-estimator step_wise; "
            "if each step is its own sample, add --dynamic-history"
        )
    indices = result.get("step_indices")
    indices = range(len(scores)) if indices is None else indices
    if not len(scores) == len(spans) == len(indices):
        raise ValueError(f"{where} has {len(scores)} scores, {len(spans)} spans and {len(indices)} indices")
    steps = [
        Step(int(index), int(start), int(end), float(score))
        for index, (start, end), score in zip(indices, spans, scores, strict=True)
    ]
    last = 0
    for step in sorted(steps, key=lambda step: step.start):
        if not last <= step.start <= step.end <= len(mask):
            raise ValueError(
                f"{where}: span [{step.start}, {step.end}) overlaps another or does not fit {len(mask)} response tokens"
            )
        last = step.end
    return steps


def _standardise(groups: Sequence[Hashable], steps: Sequence[list[Step]]) -> None:
    buckets: dict[tuple[Hashable, int], list[Step]] = defaultdict(list)
    for group, result in zip(groups, steps, strict=True):
        for step in result:
            buckets[group, step.index].append(step)
    trajectories = Counter(group for group, result in zip(groups, steps, strict=True) if result)
    for (group, _), bucket in buckets.items():
        if len(bucket) < 2 and trajectories[group] < 2:
            continue
        scores = [step.score for step in bucket]
        mean, variance = statistics.fmean(scores), statistics.pvariance(scores)
        for step in bucket:
            step.score = 0.0 if variance <= CONSTANT else (step.score - mean) / (variance**0.5 + _EPSILON)
