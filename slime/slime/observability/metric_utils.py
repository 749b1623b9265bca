"""Where a metric stands on the step axis of trackers, and which axis it belongs to. Pure."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

# Key of the trainer's metrics under which those of each optimizer step are, in order; beside it are those of the rollout.
STEPS = "steps"


def compute_rollout_step(args: Namespace, rollout_id: int) -> int:
    """Return the rollout, or with ``wandb_always_use_train_step`` the optimizer steps taken before it."""
    if not getattr(args, "wandb_always_use_train_step", False):
        return rollout_id
    return compute_train_step(args, rollout_id)


def compute_train_step(args: Namespace, rollout_id: int, step: int = 0, steps: int = 0) -> int:
    """Return ``rollout_id * steps per rollout + step``.

    Args:
        args: with ``rollout_batch_size``, ``n_samples_per_prompt`` and ``global_batch_size``, the samples of a step.
        rollout_id: the rollout.
        step: number of the optimizer step in it.
        steps: how many it had; counts when it had more than the flags say.
    """
    planned = args.rollout_batch_size * args.n_samples_per_prompt // args.global_batch_size
    return rollout_id * max(1, planned, steps) + step


def train_records(args: Namespace, rollout_id: int, metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one record per optimizer step of the trainer's ``metrics``, each with its ``train/step``."""
    steps = metrics.get(STEPS, [])
    return [
        {"train/step": compute_train_step(args, rollout_id, number, len(steps)), **step}
        for number, step in enumerate(steps)
    ]


def rollout_part(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return what of the trainer's ``metrics`` describes the rollout: neither single steps nor their means."""
    return {name: value for name, value in metrics.items() if name != STEPS and not name.startswith("train/")}
