"""Where a metric stands on the step axis of trackers, and which axis it belongs to."""

from __future__ import annotations

from typing import Any

from slime.args import Arguments

# Key of the trainer's metrics under which those of each optimizer step are, in order; beside it are those of the rollout.
STEPS = "steps"


def compute_rollout_step(args: Arguments, rollout_id: int) -> int:
    """Return the rollout, or with ``wandb_always_use_train_step`` the optimizer steps planned before it."""
    if not args.wandb_always_use_train_step:
        return rollout_id
    return compute_train_step(args, rollout_id)


def compute_train_step(args: Arguments, rollout_id: int) -> int:
    """Return ``rollout_id`` times the optimizer steps that the flags plan for a rollout."""
    planned = args.rollout_batch_size * args.n_samples_per_prompt // args.global_batch_size
    return rollout_id * max(1, planned)


class TrainSteps:
    """Numbers the optimizer steps of a run: ``rollout_id`` * planned steps + step, as long as rollouts keep to the plan.

    A rollout with more steps than planned pushes those after it further, so that no number comes twice; later rollouts with
    fewer make up for it. A rollout that is trained again after a restart gets the numbers it had.
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
    """Return what of the trainer's ``metrics`` describes the rollout: neither single steps nor their means."""
    return {name: value for name, value in metrics.items() if name != STEPS and not name.startswith("train/")}
