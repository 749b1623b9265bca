"""Metrics of a batch of samples and of an evaluation set, under dashboard names.

Guarantee: pure. Prefix ``rollout/`` describes samples, ``perf/`` time, ``eval/`` an evaluation set. A flag that is off
adds nothing, and metrics whose inputs an evaluation function did not return are left out.
"""

from __future__ import annotations

import math
import statistics
import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from slime.args import Arguments
from slime.rollout.multimodal_requests import CUT
from slime.rollout.rewards import constant_groups
from slime.rollout.rm_hub import PROBLEM
from slime.utils.types import Sample

REPETITIVE_CHARACTERS, REPETITIVE_TIMES = 1000, 10


def rollout_metrics(args: Arguments, samples: Sequence[Sample], seconds: float) -> dict[str, float]:
    """Return reward, length, truncation and speed of a batch collected in ``seconds``, and metrics that flags request."""
    lengths = [sample.effective_response_length for sample in samples]
    whole = [sample.response_length for sample in samples]
    rewards = [float(sample.get_reward_value(args)) for sample in samples if sample.reward is not None]
    metrics = {
        "rollout/response_len/mean": statistics.fmean(lengths),
        "rollout/response_len/median": statistics.median(lengths),
        "rollout/response_len/max": max(lengths),
        "rollout/response_len/min": min(lengths),
        "rollout/truncated_ratio": statistics.fmean(s.status == Sample.Status.TRUNCATED for s in samples),
        "rollout/repetition_frac": statistics.fmean(is_repetitive(s.response) for s in samples),
        "rollout/samples": len(samples),
        "perf/rollout_time": seconds,
    }
    if args.rollout_max_response_len:
        metrics["rollout/response_len/of_limit"] = metrics["rollout/response_len/mean"] / args.rollout_max_response_len
    metrics |= {f"rollout/grader_{reason}": count for reason, count in grader_problems(samples).items()}
    cut = sum(CUT in sample.metadata for sample in samples)
    if cut:
        metrics["rollout/cut_at_placeholder"] = cut
    if rewards:
        metrics["rollout/raw_reward"] = metrics["rollout/reward"] = statistics.fmean(rewards)
    if len(rewards) == len(samples):
        constant = constant_groups(args, samples)
        metrics["rollout/constant_groups"] = len(constant)
        # Rounded, so that every distinct reward does not become a metric; -0.0 counts as 0.
        counts = Counter(f"{round(reward, 1) + 0.0:g}" for reward in constant)
        metrics |= {f"rollout/zero_std/count_{reward}": count for reward, count in counts.items()}
    if seconds > 0:
        for name, numbers in (("", whole), ("effective_", lengths)):
            metrics[f"perf/{name}tokens_per_gpu_per_sec"] = sum(numbers) / seconds / max(1, args.rollout_num_gpus or 1)
            metrics[f"perf/{name}longest_sample_tokens_per_sec"] = max(numbers) / seconds
    return metrics | judged(samples) | waiting(samples) | requested_metrics(args, samples)


def judged(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the mean score of a judge and the share of positive ones; empty unless every sample carries its score."""
    scores = [sample.metadata.get("raw_reward") for sample in samples]
    numbers = [float(score) for score in scores if isinstance(score, (int, float))]
    if not numbers or len(numbers) < len(scores):
        return {}
    liked = sum(number > 0 for number in numbers)
    return {"rollout/score": statistics.fmean(numbers), "rollout/liked_share": liked / len(numbers)}


def waiting(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the seconds samples spent outside the engine and their prompts' cached share; empty if unknown."""
    metrics: dict[str, float] = {}
    outside = [sample.non_generation_time for sample in samples]
    if any(outside):
        statistics_of = {"mean": statistics.fmean, "median": statistics.median, "max": max, "min": min}
        metrics |= {f"perf/non_generation_time/{name}": of(outside) for name, of in statistics_of.items()}
    prompts = sum(sample.prefix_cache_info.total_prompt_tokens for sample in samples)
    if prompts:
        cached = sum(sample.prefix_cache_info.cached_tokens for sample in samples)
        metrics["rollout/prefix_cache_hit_rate"] = cached / prompts
        metrics["rollout/avg_cached_tokens_per_sample"] = cached / len(samples)
    return metrics


def field_means(train_data: Mapping[str, Any]) -> dict[str, float]:
    """Return means over the trainer's samples: rewards before and after normalisation, lengths, truncation.

    A plugin's field that does not hold numbers has no mean.
    """
    fields = ("rewards", "raw_reward", "response_lengths", "total_lengths", "truncated")
    given = {name: train_data[name] for name in fields if train_data.get(name)}
    return {
        f"rollout/{name}": statistics.fmean(values)
        for name, values in given.items()
        if all(hasattr(value, "__float__") for value in values)
    }


def is_repetitive(text: str) -> bool:
    """Return whether a long text is repetitive: it compresses to less than a tenth of its size."""
    if len(text) < REPETITIVE_CHARACTERS:
        return False
    plain = text.encode()
    return len(zlib.compress(plain)) * REPETITIVE_TIMES < len(plain)


def oldest_versions(samples: Sequence[Sample]) -> dict[str, float]:
    """Return mean, minimum and maximum over samples of the oldest weight version per sample, and the mean over tokens.

    Empty if unknown.
    """
    oldest = [
        min(map(int, sample.weight_versions))
        for sample in samples
        if sample.weight_versions and all(version.isdigit() for version in sample.weight_versions)
    ]
    if not oldest:
        return {}
    return {
        "rollout/oldest_version_mean": statistics.fmean(oldest),
        "rollout/oldest_version_min": min(oldest),
        "rollout/oldest_version_max": max(oldest),
        **_token_versions(samples),
    }


def _token_versions(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the mean over sampled tokens of their weight version; empty if unknown."""
    spans = [span for sample in samples for span in sample.weight_spans if str(span[0]).isdigit()]
    count = sum(end - start for _, start, end in spans)
    if not count:
        return {}
    return {"rollout/token_version_mean": sum(int(version) * (end - start) for version, start, end in spans) / count}


def staleness(metrics: dict[str, Any], weight_version: str) -> dict[str, float]:
    """Return how many versions a batch is behind the trainer's weights, from :func:`oldest_versions`.

    ``staleness_*`` are over samples, each as old as its oldest token; ``token_staleness_mean`` is over tokens.
    """
    if "rollout/oldest_version_mean" not in metrics or not weight_version.isdigit():
        return {}
    current = int(weight_version)
    tokens = metrics.get("rollout/token_version_mean")
    return {
        **({} if tokens is None else {"rollout/token_staleness_mean": current - tokens}),
        "rollout/staleness_min": current - metrics["rollout/oldest_version_max"],
        "rollout/staleness_mean": current - metrics["rollout/oldest_version_mean"],
        "rollout/staleness_max": current - metrics["rollout/oldest_version_min"],
    }


def flatten(output: Any) -> list[Sample]:
    """Return the samples of nested lists, in order."""
    if isinstance(output, Sample):
        return [output]
    return [sample for item in output for sample in flatten(item)]


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


PREFIX = "eval/"
_COUNT = "/answers"


def eval_metrics(name: str, result: dict[str, Any]) -> dict[str, float]:
    """Return ``eval/<name>`` (mean reward), its ratios, pass@k, response lengths and grader problems.

    Args:
        name: name of the set.
        result: ``rewards``, one per answer. Optional, per answer: ``truncated``, ``aborted`` and ``groups`` (the
            prompt's number). Optional: ``samples``, more than answers if an answer was cut into several.
    """
    rewards = [float(reward) for reward in result["rewards"]]
    metrics: dict[str, float] = {}
    if rewards:
        metrics[f"eval/{name}"] = statistics.fmean(rewards)
        metrics[f"eval/{name}/answers"] = len(rewards)
    for kind in ("truncated", "aborted"):
        if result.get(kind):
            metrics[f"eval/{name}-{kind}_ratio"] = statistics.fmean(map(bool, result[kind]))
    rates = pass_at_k(result["groups"], rewards) if result.get("groups") else {}
    if len(rates) > 1:
        metrics |= {f"eval/{name}-pass@{k}": rate for k, rate in rates.items()}
    samples = result.get("samples") or []
    if samples:
        lengths = [sample.effective_response_length for sample in samples]
        for statistic, function in (
            ("mean", statistics.fmean),
            ("median", statistics.median),
            ("max", max),
            ("min", min),
        ):
            metrics[f"eval/{name}/response_len/{statistic}"] = function(lengths)
        metrics |= {f"eval/{name}/grader_{reason}": count for reason, count in grader_problems(samples).items()}
    return metrics


def scores(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the mean reward of each set among the metrics of an evaluation."""
    return {
        name.removeprefix(PREFIX).removesuffix(_COUNT): metrics[name.removesuffix(_COUNT)]
        for name in metrics
        if name.startswith(PREFIX) and name.endswith(_COUNT)
    }
