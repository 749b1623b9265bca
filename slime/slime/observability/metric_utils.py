"""Where a metric stands on the step axis of trackers. Pure."""

from __future__ import annotations

from argparse import Namespace


def compute_rollout_step(args: Namespace, rollout_id: int) -> int:
    """Return the rollout, or with ``wandb_always_use_train_step`` the optimizer steps taken before it."""
    if not getattr(args, "wandb_always_use_train_step", False):
        return rollout_id
    return rollout_id * args.rollout_batch_size * args.n_samples_per_prompt // args.global_batch_size
