"""Standardise the scores of an agent's steps, for ``--advantage-estimator step_wise``.

A sample's ``metadata["step_wise"]`` has ``step_scores_with_outcome`` (or ``step_scores``), ``step_token_spans``
(``[start, end)`` in its response) and optionally ``step_indices`` (default 0, 1, ...). With ``--dynamic-history`` a
sample without spans is one step: its reward, from the first to the last unmasked token, index 0.

Steps with the same group and index are standardised together: ``(v - mean) / (population deviation + 1e-6)``. Equal
scores become 0, and so does a step that no other trajectory of its group reached: its raw score would push the longest
trajectory by the score's sign. A group of one keeps its scores. A sample without an unmasked token has no steps. Lists that do
not match are errors; nothing is cut.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from slime.args import Arguments
from slime.utils.types import Sample

_CONSTANT = 1e-12
_EPSILON = 1e-6


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
        "step_wise_step_rewards": [[step.score for step in found] for found in steps],
        "step_wise_step_token_spans": [[[step.start, step.end] for step in found] for found in steps],
        "step_wise_step_indices": [[step.index for step in found] for found in steps],
    }


def steps_of_sample(args: Arguments, sample: Sample, mask: Sequence[int]) -> list[Step]:
    """Return the steps of one sample with their raw scores.

    Raises:
        ValueError: a sample has no steps, or they do not fit its response; the message names it.
    """
    if not any(mask):
        return []
    found = sample.metadata.get("step_wise") or {}
    spans = found.get("step_token_spans")
    if spans is None and args.dynamic_history:
        kept = [position for position, value in enumerate(mask) if value]
        return [Step(0, kept[0], kept[-1] + 1, float(sample.get_reward_value(args)))]
    scores = found.get("step_scores_with_outcome")
    scores = found.get("step_scores") if scores is None else scores
    where = f'sample {sample.index}: metadata["step_wise"]'
    if spans is None or scores is None:
        raise ValueError(
            f"{where} needs step_scores and step_token_spans for --advantage-estimator step_wise; "
            "if each step is its own sample, add --dynamic-history"
        )
    indices = found.get("step_indices")
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
    for group, found in zip(groups, steps, strict=True):
        for step in found:
            buckets[group, step.index].append(step)
    trajectories = Counter(group for group, found in zip(groups, steps, strict=True) if found)
    for (group, _), bucket in buckets.items():
        if len(bucket) < 2 and trajectories[group] < 2:
            continue
        scores = [step.score for step in bucket]
        mean, variance = statistics.fmean(scores), statistics.pvariance(scores)
        for step in bucket:
            step.score = 0.0 if variance <= _CONSTANT else (step.score - mean) / (variance**0.5 + _EPSILON)
