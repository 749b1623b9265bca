"""Metrics of a batch: samples without a grade and, on request, turns, pass rates, reward categories, correct samples.

Guarantee: pure; a flag that is off adds nothing.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence

from slime.args import Arguments
from slime.rollout.rm_hub import PROBLEM
from slime.utils.types import Sample

PASSING_REWARD = 1.0


def grader_problems(samples: Iterable[Sample]) -> dict[str, int]:
    """Return the number of samples that got the lowest reward without a grade, by reason."""
    return dict(Counter(sample.metadata[PROBLEM] for sample in samples if PROBLEM in sample.metadata))


def pass_at_k(groups: Sequence[Hashable], rewards: Sequence[float]) -> dict[int, float]:
    """Return, for powers of two k, the chance that one of k answers to a prompt has a reward of 1 or more.

    The unbiased estimator ``1 - C(n - c, k) / C(n, k)`` of Chen et al. 2021 (arXiv:2107.03374), mean over the prompts with at
    least k answers. ``groups`` has the prompt of each answer.
    """
    answers: dict[Hashable, list[bool]] = defaultdict(list)
    for group, reward in zip(groups, rewards, strict=True):
        answers[group].append(reward >= PASSING_REWARD)
    most = max(map(len, answers.values()), default=0)
    rates = {}
    for k in (2**power for power in range(most.bit_length())):
        rates[k] = statistics.fmean(
            1.0 - math.comb(len(passed) - sum(passed), k) / math.comb(len(passed), k)
            for passed in answers.values()
            if len(passed) >= k
        )
    return rates


def requested_metrics(args: Arguments, samples: Sequence[Sample]) -> dict[str, float]:
    """Return what ``--log-multi-turn``, ``--log-passrate``, ``--log-reward-category`` and ``--log-correct-samples`` request."""
    metrics: dict[str, float] = {}
    if args.log_multi_turn:
        metrics |= multi_turn(samples)
    if args.log_passrate:
        metrics |= pass_rates(args, samples)
    if args.log_reward_category:
        metrics |= reward_categories(args.log_reward_category, samples)
    if args.log_correct_samples:
        metrics |= correct_samples(args, samples)
    return metrics


def multi_turn(samples: Sequence[Sample]) -> dict[str, float]:
    """Return response lengths with and without observations, and rounds if samples record them."""
    values = {
        "raw_response_length": [sample.response_length for sample in samples],
        "wo_obs_response_length": [sample.effective_response_length for sample in samples],
        "round_number": [s.metadata["round_number"] for s in samples if "round_number" in s.metadata],
    }
    return {
        f"multi_turn/{name}/{statistic}": function(numbers)
        for name, numbers in values.items()
        if numbers
        for statistic, function in (("mean", statistics.fmean), ("max", max), ("min", min))
    }


def pass_rates(args: Arguments, samples: Sequence[Sample]) -> dict[str, float]:
    """Return ``passrate/pass@k``, see `pass_at_k`; a sample without a group is its own prompt."""
    groups = [
        ("alone", position) if sample.group_index is None else sample.group_index
        for position, sample in enumerate(samples)
    ]
    rates = pass_at_k(groups, [_reward(args, sample) for sample in samples])
    return {f"passrate/pass@{k}": rate for k, rate in rates.items()}


def reward_categories(key: str, samples: Sequence[Sample]) -> dict[str, float]:
    """Return ``error_cat/<value>``: the share of samples whose reward dict has that value under ``key``."""
    rewards = [sample.reward for sample in samples if isinstance(sample.reward, dict)]
    counts = Counter(str(reward[key]) for reward in rewards if key in reward)
    return {f"error_cat/{value}": count / len(samples) for value, count in counts.items()}


def correct_samples(args: Arguments, samples: Sequence[Sample]) -> dict[str, float]:
    """Return count and mean lengths of the samples with a reward above 0."""
    correct = [sample for sample in samples if _reward(args, sample) > 0]
    metrics: dict[str, float] = {"rollout/correct_samples": len(correct)}
    if correct:
        metrics["rollout/correct_response_lengths"] = statistics.fmean(sample.response_length for sample in correct)
        metrics["rollout/correct_total_lengths"] = statistics.fmean(len(sample.tokens) for sample in correct)
    return metrics


def _reward(args: Arguments, sample: Sample) -> float:
    return 0.0 if sample.reward is None else float(sample.get_reward_value(args))
