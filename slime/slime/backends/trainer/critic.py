"""One rank of PPO's critic, for any back end: values before the policy's step, and its own step towards the returns.

A back end implements the abstract methods: building the critic, its values, a step, and checkpoint state.

The order for a rollout is ``values``, then the policy's ``prepare`` with them, then ``step`` with the resulting
returns. The steps of policy and critic do not wait for each other. The critic has its own learning rate, warm-up and
checkpoints, and shares all other trainer settings. ``save`` gives a checkpoint its final name. A run resumes from it
once the policy's checkpoint of the same rollout is published; ``publish`` then deletes older ones.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from slime.args import Arguments, required
from slime.backends.trainer.micro_batch import Metrics
from slime.backends.trainer.rank import TrainRank, fetch, mean_of_steps
from slime.backends.trainer.rollout_data import RolloutShard
from slime.checkpoints import checkpoint_folder
from slime.checkpoints.all_ranks import on_rank_zero
from slime.checkpoints.versions import superseded_of_critic
from slime.exceptions import CheckpointError
from slime.observability.metric_utils import STEPS


class CriticActor(TrainRank):
    """See the module. Call ``init``, then ``load_checkpoint``."""

    role = "critic"

    def __init__(self, world_size: int, rank: int, master_addr: str, master_port: int = 0) -> None:
        super().__init__(world_size, rank, master_addr, master_port)
        self._data: RolloutShard | None = None

    @abstractmethod
    def _build(self, folder: str) -> None:
        """Build critic and optimizer, with the backbone of the Hugging Face folder ``folder``."""

    @abstractmethod
    def _values(self, data: RolloutShard) -> list[torch.Tensor]:
        """Return ``[R_i]`` values of every sample on the CPU."""

    @abstractmethod
    def _optimizer_step(self, data: RolloutShard, rollout_id: int, step: int) -> Metrics:
        """Take a step; return metrics with ``grad_norm``, ``lr-pg_0`` and ``skipped_steps``, equal on all ranks."""

    @abstractmethod
    def _write(self, root: Path, iteration: int, meta: dict[str, Any]) -> Path:
        """Write a checkpoint and return its folder, not yet published."""

    def init(self, args: Arguments) -> None:
        """Build the critic from the backbone of --critic-load, or from the policy's start weights."""
        self._begin(critic_arguments(args))
        start = self.args.critic_load
        self._build(start if start and (Path(start) / "config.json").exists() else self._start_weights())
        self._seed()

    def load_checkpoint(self, start_rollout_id: int) -> None:
        """Load the checkpoint of --critic-load, or with --resume that of the rollout before ``start_rollout_id``."""
        args = self.args
        if args.resume:
            folder = checkpoint_folder.folder_of(self._save_folder(), start_rollout_id)
            if not (folder / "meta.json").exists():
                raise CheckpointError(
                    f"--resume needs the critic's checkpoint {folder}: set --critic-save to its folder"
                )
        else:
            folder = checkpoint_folder.find(Path(args.critic_load)) if args.critic_load else None
        if folder is not None:
            self._restore(folder)

    def values(self, rollout_id: int, shard: Any) -> dict[int, torch.Tensor]:
        """Return the values ``[R_i]`` of this rank's samples, by their position in the rollout, before any step on it."""
        self._check_memory()
        with self._timed("values"):
            self._data = data = RolloutShard(fetch(shard))
            data.set_computed("values", self._values(data))
        return data.by_position("values")

    def step(self, rollout_id: int, returns: Sequence[Any]) -> dict[str, Any] | None:
        """Take the optimizer steps of the rollout last given to ``values``.

        Args:
            rollout_id: rollout of the data.
            returns: result of each policy rank for the rollout, or references.

        Returns:
            On rank 0 the metrics of each step in a list under ``STEPS``, and their means; None elsewhere.
        """
        self._check_memory()
        data, self._data = self._data, None
        assert data is not None, "call values first"
        data.set_from_positions("returns", [fetch(part) for part in returns])
        with self._timed("critic_train"):
            steps = [self._optimizer_step(data, rollout_id, number) for number in range(len(data.micro_batches))]
        seconds = self._take_seconds()
        if self.rank != 0:
            return None
        return {STEPS: [named(step) for step in steps], **named(mean_of_steps(steps)), **seconds}

    def save(self, rollout_id: int) -> str:
        """Write a checkpoint that contains the step of ``rollout_id`` and return its folder."""
        self._check_memory()
        with self._timed("critic_save"):
            return str(self._write(self._save_folder(), rollout_id + 1, self._common_meta(rollout_id)))

    def _save_folder(self) -> Path:
        return Path(required("--critic-save", self.args.critic_save))

    def publish(self, rollout_id: int) -> None:
        """Mark the checkpoint of ``rollout_id`` as the latest and delete those beyond --save-keep, after the policy's."""
        root, policy, iteration = self._save_folder(), Path(required("--save", self.args.save)), rollout_id + 1

        def publish() -> None:
            old = superseded_of_critic(root, iteration, self.args.save_keep, policy)
            checkpoint_folder.publish(root, iteration, old)

        on_rank_zero(publish)


def named(metrics: Metrics) -> Metrics:
    """Return the metrics of the critic's steps under their logged names."""
    return {
        f"train/{name if name.startswith('value_') else f'critic-{name}'}": value for name, value in metrics.items()
    }


def critic_arguments(args: Arguments) -> Arguments:
    """Return ``args`` with the critic's learning rate and warm-up instead of the policy's."""
    changed = {
        "lr": args.lr if args.critic_lr is None else args.critic_lr,
        "lr_warmup_iters": args.critic_lr_warmup_iters,
        "lr_warmup_fraction": None,
    }
    return args.changed(**changed)
