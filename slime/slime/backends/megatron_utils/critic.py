"""The critic: Megatron's model with a linear head, one number per token, instead of its output layer.

Guarantees, as for every critic: a value is read where the policy reads the token's probability, and a new head starts
at zero and computes in float32. The head's weights have the model's dtype, because Megatron-core 0.16.1 cannot store an
optimizer with mixed dtypes (the optimizer's own copy is float32), and are whole on every rank of the last pipeline
stage. Tensor-parallel ranks compute the same values, so their gradients are equal; those of context-parallel ranks add
up.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from slime.args import Arguments
from slime.backends.megatron_utils.context_parallel import share_of, whole_responses
from slime.backends.megatron_utils.model import build_model, unwrapped
from slime.backends.megatron_utils.rank import MegatronRank
from slime.backends.megatron_utils.train_step import optimizer_step, per_sample_pass
from slime.backends.trainer.critic import CriticActor
from slime.backends.trainer.micro_batch import Metrics, value_micro_batch_loss
from slime.backends.trainer.packing import MicroBatch
from slime.backends.trainer.rollout_data import RolloutShard
from slime.logprobs.context_parallel import own_place


def build_critic(args: Arguments, path: str, *, device: torch.device) -> tuple[Any, Any]:
    """Return this stage's critic with the backbone of the Hugging Face folder ``path``, and its configuration."""
    model, config = build_model(args, path, device=device, lm_head=False)
    inner = unwrapped(model)
    if inner.post_process:
        head = nn.Linear(config.hidden_size, 1, dtype=config.params_dtype, device=device)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        inner.output_layer = head
    return model, config


def values_of(model: Any, hidden: Tensor, batch: MicroBatch) -> Tensor:
    """Return the float32 values ``[N]`` of ``batch``'s response rows, equal on every rank of the last stage.

    ``hidden`` ``[T, 1, H]`` is the unwrapped ``model``'s output; with sequence parallelism, this rank's part.
    """
    from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

    if model.config.sequence_parallel:
        hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
    share = share_of(batch, *own_place())
    head, rows = model.output_layer, hidden.squeeze(1)[share.rows]
    values = nn.functional.linear(rows.float(), head.weight.float(), head.bias.float())
    return whole_responses(values.squeeze(-1), share.owned, len(batch.targets))


def value_pass(args: Arguments, model: Any, shard: RolloutShard, device: torch.device) -> list[Tensor]:
    """Return ``[R_i]`` values of every sample of the shard, on the CPU of every rank."""
    return per_sample_pass(args, model, shard, device, lambda hidden, batch: values_of(unwrapped(model), hidden, batch))


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
