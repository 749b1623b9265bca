"""What a rollout function returns, and how it is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slime.utils.types import Sample


@dataclass
class RolloutFnTrainOutput:
    """Groups of samples, possibly nested lists, and metrics to log.

    Attributes:
        samples: to train.
        metrics: to log.
        person: whose samples all of them are, so that a fuse that the step blows pauses this person's training alone; None of
            several people's.
        passes: optimizer steps to take, each with all samples; None: the flags say how samples make steps.

    Example:
        >>> from slime.utils.types import Sample
        >>> def rollout(args, rollout_id, data_source, evaluation=False):
        ...     samples = [[Sample(tokens=[1, 2], response_length=1, reward=1.0)]]
        ...     return RolloutFnTrainOutput(samples=samples, metrics={"rollout/mine": 1.0})
    """

    samples: list[list[Sample]]
    metrics: dict[str, Any] | None = None
    person: str | None = None
    passes: int | None = None


@dataclass
class RolloutFnEvalOutput:
    """``{dataset: {"rewards": [...], "truncated": [...], "samples": [...]}}`` and metrics to log."""

    data: dict[str, dict[str, Any]]
    metrics: dict[str, Any] | None = None


def call_rollout_fn(
    fn: Callable, *values: Any, evaluation: bool, **kwargs: Any
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """Call ``fn(*values, evaluation=evaluation, **kwargs)`` and wrap a bare list or dict into the output class."""
    output = fn(*values, evaluation=evaluation, **kwargs)
    if isinstance(output, RolloutFnTrainOutput | RolloutFnEvalOutput):
        return output
    return RolloutFnEvalOutput(data=output) if evaluation else RolloutFnTrainOutput(samples=output)
