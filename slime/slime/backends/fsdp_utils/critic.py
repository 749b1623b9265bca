"""One rank of the critic with FSDP2: owns its shard of the critic."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from slime.backends.fsdp_utils import checkpoint
from slime.backends.fsdp_utils.critic_model import build_critic, value_pass
from slime.backends.fsdp_utils.device_memory import tensors_of
from slime.backends.fsdp_utils.optimizer import build_optimizer
from slime.backends.fsdp_utils.train_step import optimizer_step
from slime.backends.trainer.critic import CriticActor
from slime.backends.trainer.micro_batch import Metrics, value_micro_batch_loss
from slime.backends.trainer.rollout_data import RolloutShard


class FSDPCriticActor(CriticActor):
    """See the module and :class:`CriticActor`."""

    def _build(self, folder: str) -> None:
        model = build_critic(self.args, folder, device=self.device)
        self._set_model(model, build_optimizer(self.args, model))

    def _values(self, data: RolloutShard) -> list[torch.Tensor]:
        return value_pass(self.args, self.model, data, self.device)

    def _optimizer_step(self, data: RolloutShard, rollout_id: int, step: int) -> Metrics:
        work = (self.args, self.model, self.optimizer, self.schedule, data, step, self.device)
        return optimizer_step(*work, loss_of=value_micro_batch_loss)

    def _device_tensors(self) -> tuple[Iterator[torch.Tensor], Iterator[torch.Tensor]]:
        return tensors_of(self.model, self.optimizer), iter(())

    def _write(self, root: Path, iteration: int, meta: dict[str, Any]) -> Path:
        return checkpoint.save(root, iteration, self.model, self.optimizer, meta)

    def _read(self, folder: Path) -> dict[str, Any]:
        return checkpoint.load(folder, self.model, self.optimizer, wants_lora=False)
