"""Numbers about a batch of samples, under the names of dashboards.

Guarantee: pure. Prefix ``rollout/`` describes samples, ``perf/`` describes time.
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from slime.rollout.rewards import constant_groups
from slime.rollout.rm_hub import grader_problems
from slime.rollout.sample_metrics import requested_metrics
from slime.utils.types import Sample


def rollout_metrics(args: Namespace, samples: Sequence[Sample], seconds: float) -> dict[str, float]:
    """Return reward, length, truncation and speed of a batch that took ``seconds`` to collect, and what flags ask for."""
    lengths = [sample.effective_response_length for sample in samples]
    rewards = [float(sample.get_reward_value(args)) for sample in samples if sample.reward is not None]
    tokens = sum(lengths)
    metrics = {
        "rollout/response_len/mean": statistics.fmean(lengths),
        "rollout/response_len/median": statistics.median(lengths),
        "rollout/response_len/max": max(lengths),
        "rollout/response_len/min": min(lengths),
        "rollout/truncated_ratio": statistics.fmean(s.status == Sample.Status.TRUNCATED for s in samples),
        "rollout/samples": len(samples),
        "perf/rollout_time": seconds,
    }
    metrics |= {f"rollout/grader_{reason}": count for reason, count in grader_problems(samples).items()}
    if rewards:
        metrics["rollout/raw_reward"] = statistics.fmean(rewards)
    if len(rewards) == len(samples):
        metrics["rollout/constant_groups"] = constant_groups(args, samples)
    if seconds > 0:
        metrics["perf/tokens_per_gpu_per_sec"] = tokens / seconds / max(1, args.rollout_num_gpus or 1)
    return metrics | requested_metrics(args, samples)


def oldest_versions(samples: Sequence[Sample]) -> dict[str, float]:
    """Mean, minimum and maximum over samples of the oldest weights that sampled a token of theirs; empty when unknown."""
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
    }


def staleness(metrics: dict[str, Any], weight_version: str) -> dict[str, float]:
    """How many versions behind the trainer's weights the samples of a batch are, from :func:`oldest_versions`."""
    if "rollout/oldest_version_mean" not in metrics or not weight_version.isdigit():
        return {}
    current = int(weight_version)
    return {
        "rollout/staleness_min": current - metrics["rollout/oldest_version_max"],
        "rollout/staleness_mean": current - metrics["rollout/oldest_version_mean"],
        "rollout/staleness_max": current - metrics["rollout/oldest_version_min"],
    }


def flatten(output: Any) -> list[Sample]:
    """Samples of nested lists, in order."""
    if isinstance(output, Sample):
        return [output]
    return [sample for item in output for sample in flatten(item)]
