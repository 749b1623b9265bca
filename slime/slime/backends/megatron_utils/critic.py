"""One rank of the critic with Megatron: owns its part of the critic; the layout is the policy's, but for the number of copies."""

from __future__ import annotations

import torch
from torch import Tensor

from slime.backends.megatron_utils.critic_model import build_critic, value_pass, values_of
from slime.backends.megatron_utils.model import unwrapped
from slime.backends.megatron_utils.rank import MegatronRank
from slime.backends.megatron_utils.train_step import optimizer_step
from slime.backends.trainer.critic import CriticActor
from slime.backends.trainer.micro_batch import Metrics, value_micro_batch_loss
from slime.backends.trainer.rollout_data import RolloutShard


class MegatronCriticActor(MegatronRank, CriticActor):
    """See the module and :class:`CriticActor`."""

    def _build(self, folder: str) -> None:
        self._join_groups()
        self._wrap(*build_critic(self.args, folder, device=self.device))

    def _values(self, data: RolloutShard) -> list[torch.Tensor]:
        self._before_pass("")
        return value_pass(self.args, self.model, data, self.device)

    def _optimizer_step(self, data: RolloutShard, rollout_id: int, step: int) -> Metrics:
        self._before_step(rollout_id, step)

        def loss_of(indices: list[int], hidden: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            model = unwrapped(self.model)
            return value_micro_batch_loss(
                self.args, lambda batch: values_of(model, hidden, batch), data, indices, self.device
            )

        return optimizer_step(self.args, self.model, self.optimizer, self.schedule, data, step, self.device, loss_of)
