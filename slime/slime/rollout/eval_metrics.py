"""Metrics of one evaluation set, under dashboard names.

Guarantee: pure. Metrics whose inputs the evaluation function did not return are left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from slime.rollout.sample_metrics import grader_problems, pass_at_k

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
