"""A rank of the policy without a group and with a back end that computes nothing, to see what a rank itself does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lab.testkit.trainer import trainer_args
from slime.args import Arguments
from slime.backends.trainer.host_memory import Changing
from slime.backends.trainer.micro_batch import RolloutShard
from slime.backends.trainer.process import RankProcess
from slime.backends.trainer.rank import PolicyRank
from slime.backends.trainer.schedule import Schedule

CPU = torch.device("cpu")


class Alone(RankProcess):
    """A process that joins nobody."""

    def join(self, args: Arguments) -> torch.device:
        return CPU

    def leave(self) -> None:
        """There is no group."""


class IdleBackend:
    """A policy of one weight; ``asked`` are the passes and the checkpoints read, ``step`` what a step returns."""

    model = optimizer = data_group = None

    def __init__(self, args: Arguments, start: str, device: torch.device, schedule: Schedule, value: Any) -> None:
        self.schedule = schedule
        self.start = start
        self.asked: list[str] = []
        self.weight = torch.zeros(1)
        self.step: Callable[[int], Any] = lambda number: {"skipped_steps": 0.0, "lr-pg_0": 0.0}

    def policy_pass(self, data: RolloutShard) -> tuple[list[Tensor], None]:
        self.asked.append("policy")
        return [torch.zeros(length) for length in data.fields["response_lengths"]], None

    def reference_pass(self, data: RolloutShard) -> list[Tensor]:
        self.asked.append("reference")
        return [torch.zeros(length) for length in data.fields["response_lengths"]]

    def scores(self, data: RolloutShard) -> list[Tensor]:
        raise NotImplementedError

    def greedy(self, batches: Any, rounds: Any) -> None:
        raise NotImplementedError

    def before_steps(self) -> None:
        """Nothing to prepare."""

    def optimizer_step(self, data: RolloutShard, rollout_id: int, step: int) -> Any:
        return self.step(step)

    def after_steps(self, rollout_id: int) -> None:
        """Nothing follows."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "weight", self.weight

    pushed_weights = weights

    def device_tensors(self) -> tuple[Iterator[Tensor], Iterator[Tensor]]:
        return iter([self.weight]), iter(())

    def changing(self) -> Changing:
        return Changing([self.weight], (), (), self.schedule)

    def write(self, root: Path, iteration: int, meta: dict[str, Any]) -> Path:
        return root / str(iteration)

    def read(self, folder: Path) -> dict[str, Any]:
        self.asked.append(folder.name)
        earlier = Schedule(trainer_args("", lr=0.5), None)
        return {"weight_version": 4, "rollout_id": 2, "schedule": earlier.state_dict()}

    def close(self) -> None:
        """Nothing is open."""


class IdleRank(PolicyRank):
    """See the module."""

    make_backend = IdleBackend
    backend: IdleBackend  # type: ignore[assignment]

    def __init__(self, rank: int = 0) -> None:
        super().__init__(1, rank, "localhost", 1)
        self.process = Alone(1, rank, "localhost", 1)
        self.start = 0


def idle_rank(args: Arguments, rank: int = 0) -> IdleRank:
    """Return a rank after ``init``; ``start`` is the first rollout."""
    made = IdleRank(rank)
    made.start = made.init(args)
    return made
