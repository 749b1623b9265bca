"""Compute the position of metrics on the trackers' step axes."""

from __future__ import annotations

from typing import Any

from slime.args import Arguments

# Key of the trainer's metrics that holds one dict per optimizer step, in order; the other keys describe the rollout.
STEPS = "steps"


def compute_rollout_step(args: Arguments, rollout_id: int) -> int:
    """Return ``rollout_id``, or the optimizer steps before it with ``wandb_always_use_train_step``."""
    if not args.wandb_always_use_train_step:
        return rollout_id
    return compute_train_step(args, rollout_id)


def compute_train_step(args: Arguments, rollout_id: int) -> int:
    """Return ``rollout_id`` times the optimizer steps per rollout that the flags imply."""
    planned = args.rollout_batch_size * args.n_samples_per_prompt // args.global_batch_size
    return rollout_id * max(1, planned)


class TrainSteps:
    """Numbers the optimizer steps of a run.

    The number is ``rollout_id`` * planned steps + step if all rollouts take the planned steps. A rollout with more
    steps than planned shifts the following ones, so that no number repeats. Later rollouts with fewer steps make up for
    it. A rollout that is trained again after a restart gets the same numbers.
    """

    def __init__(self, args: Arguments) -> None:
        self._args = args
        self._ends: dict[int, int] = {}

    def records(self, rollout_id: int, metrics: dict[str, Any]) -> list[dict[str, Any]]:
        """Return one record per optimizer step of the trainer's ``metrics``, each with its ``train/step``."""
        steps = metrics.get(STEPS, [])
        first = max(compute_train_step(self._args, rollout_id), self._ends.get(rollout_id - 1, 0))
        self._ends[rollout_id] = first + len(steps)
        return [{"train/step": first + number, **step} for number, step in enumerate(steps)]


def rollout_part(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the trainer's ``metrics`` that describe the rollout, without single steps and their means."""
    return {name: value for name, value in metrics.items() if name != STEPS and not name.startswith("train/")}
