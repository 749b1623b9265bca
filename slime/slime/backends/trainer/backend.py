"""What a training rank needs of a back end, FSDP or Megatron, for the policy and for the critic.

A back end builds its model in the constructor, from a Hugging Face folder, and owns model, optimizer and schedule. All
methods are collective over the ranks of the role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from slime.args import Arguments
from slime.backends.trainer.host_memory import Changing
from slime.backends.trainer.micro_batch import Metrics, RolloutShard
from slime.backends.trainer.probing import Continuation, Rounds
from slime.backends.trainer.schedule import Schedule


class Backend(Protocol):
    """A model on one rank, and the optimizer that trains it."""

    model: Any
    optimizer: Any
    schedule: Schedule

    def optimizer_step(self, data: RolloutShard, rollout_id: int, step: int) -> Metrics:
        """Take a step; return metrics with ``grad_norm``, ``lr-pg_0`` and ``skipped_steps``, equal on all ranks."""
        ...

    def device_tensors(self) -> tuple[Iterator[Tensor], Iterator[Tensor]]:
        """Return the tensors of model, optimizer and reference, and those that are all zero between steps."""
        ...

    def changing(self) -> Changing:
        """Return what a step changes; the state of every optimizer is complete, and no weights are left gathered."""
        ...

    def write(self, root: Path, iteration: int, meta: dict[str, Any]) -> Path:
        """Write a checkpoint and return its folder, not yet published."""
        ...

    def read(self, folder: Path) -> dict[str, Any]:
        """Load model, optimizer and random state of the checkpoint ``folder`` and return its metadata."""
        ...

    def close(self) -> None:
        """Leave the back end's own process groups."""
        ...


class PolicyBackend(Backend, Protocol):
    """The policy: built as ``kind(args, start, device, schedule, value)``.

    ``value`` returns the values of a tensor on the device, even while the rank is offloaded.

    Attributes:
        data_group: the ranks with different samples; None means all.
    """

    data_group: dist.ProcessGroup | None

    def policy_pass(self, data: RolloutShard) -> tuple[list[Tensor], list[Tensor] | None]:
        """Return ``[R_i]`` log probabilities of every sample, and its entropies with ``--use-rollout-entropy``; on the CPU."""
        ...

    def reference_pass(self, data: RolloutShard) -> list[Tensor]:
        """Return ``[R_i]`` log probabilities of every sample under the reference, on the CPU."""
        ...

    def scores(self, data: RolloutShard) -> list[Tensor]:
        """Return ``[R_i]`` log probabilities of every sample at temperature 1, on the CPU."""
        ...

    def greedy(self, batches: list[list[Continuation]], rounds: Rounds) -> None:
        """Complete the replies of ``batches``."""
        ...

    def before_steps(self) -> None:
        """Prepare for the steps of a rollout."""
        ...

    def after_steps(self, rollout_id: int) -> None:
        """Follow the steps of a rollout."""
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield whole weights in ``--train-dtype`` under Hugging Face names; every rank must exhaust it, rank 0's values count."""
        ...

    def begin_adapter(self, seed: int) -> None:
        """Set the LoRA adapter to one that no step has changed: A drawn from ``seed``, B zero, so the policy is the base.

        The same values on any number of ranks. Moments and step counts stay.
        """
        ...

    def pushed_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what a push sends: whole weights or the adapter, like :meth:`weights` but of any floating type."""
        ...


class CriticBackend(Backend, Protocol):
    """The critic: built as ``kind(args, start, device, schedule)``."""

    def value_pass(self, data: RolloutShard) -> list[Tensor]:
        """Return ``[R_i]`` values of every sample on the CPU."""
        ...


MakePolicy = Callable[[Arguments, str, torch.device, Schedule, Callable[[Tensor], Tensor]], PolicyBackend]
MakeCritic = Callable[[Arguments, str, torch.device, Schedule], CriticBackend]
