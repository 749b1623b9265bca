"""``--custom-rollout-log-function-path rollout_log.rollout_log``: metrics ``terminal/*`` beside the usual ones."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from slime.args import Arguments
from slime.ray.rollout import compute_rollout_step
from slime.utils import logging_utils
from slime.utils.types import Sample

STATUSES = ("completed", "truncated", "failed", "aborted")


def rollout_log(
    rollout_id: int, args: Arguments, samples: Sequence[Sample], extra: Mapping[str, Any] | None, seconds: float
) -> bool:
    """Log the rollout; return False, so that the usual metrics are logged as well."""
    metrics = terminal_metrics(samples, seconds)
    logging_utils.log(args, {**metrics, "rollout/step": compute_rollout_step(args, rollout_id)}, "rollout/step")
    return False


def terminal_metrics(samples: Sequence[Sample], seconds: float) -> dict[str, float]:
    """Return the metrics of samples whose rewards `generate.generate` made; a metric without a value is left out."""
    count = len(samples)
    results: dict[str, float] = {"total_samples": count, "rollout_time": seconds}
    for status in STATUSES:
        results[status] = sum(sample.status.value == status for sample in samples)
    if count:
        results["failed_ratio"] = (results["failed"] + results["aborted"]) / count
        results["non_trainable_ratio"] = sum(sample.remove_sample for sample in samples) / count
    rewards: list[dict[str, Any]] = [sample.reward for sample in samples if isinstance(sample.reward, dict)]
    if scores := [reward["score"] for reward in rewards]:
        results |= {"reward_mean": statistics.fmean(scores), "reward_min": min(scores), "reward_max": max(scores)}
        results["accuracy"] = statistics.fmean(reward["accuracy"] for reward in rewards)
    if judged := [reward["prm_turn_score"] for reward in rewards if reward["prm_turn_score"] is not None]:
        results["prm_turn_score"] = statistics.fmean(judged)
    return {f"terminal/{name}": float(value) for name, value in results.items()}
