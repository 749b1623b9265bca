"""The critic with FSDP2: a Hugging Face language model's backbone and a linear head that gives one number per token.

Guarantees: the value of a response token is read where the policy reads its probability, from the hidden state before
it. The head starts at zero, so a new critic predicts a return of 0 everywhere, and computes in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slime.args import Arguments
from slime.backends.fsdp_utils import checkpoint
from slime.backends.fsdp_utils.model import hidden_states, load_hf, sharded
from slime.backends.fsdp_utils.optimizer import build_optimizer, changing, tensors_of
from slime.backends.fsdp_utils.train_step import optimizer_step, per_sample_pass
from slime.backends.trainer.critic import CriticActor
from slime.backends.trainer.micro_batch import Metrics, value_micro_batch_loss
from slime.backends.trainer.packing import MicroBatch
from slime.backends.trainer.rollout_data import RolloutShard
from slime.backends.trainer.snapshot import Changing


class ValueModel(nn.Module):
    """Backbone and value head in one forward, so that FSDP sees one root."""

    def __init__(self, hf: Any, implementation: str) -> None:
        super().__init__()
        self.hf = hf
        self.implementation = implementation
        device = next(hf.parameters()).device
        self.head = nn.Linear(hf.config.get_text_config().hidden_size, 1, dtype=torch.float32, device=device)
        if device.type != "meta":
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, batch: MicroBatch) -> Tensor:
        """Return the values ``[N]`` float32 of the response rows."""
        values = self.head(hidden_states(self.hf, self.implementation, batch)[batch.rows])
        return values.squeeze(-1).clone()  # FSDP does not accept a view as a root's output


def build_critic(args: Arguments, path: str, *, device: torch.device) -> ValueModel:
    """Return the sharded critic with the backbone of checkpoint folder ``path``; collective over all ranks."""
    from transformers import AutoModel

    def construct(empty: bool) -> ValueModel:
        hf, implementation = load_hf(args, path, AutoModel, torch.float32, empty=empty)
        if args.gradient_checkpointing:
            hf.gradient_checkpointing_enable({"use_reentrant": False})
        return ValueModel(hf, implementation)

    return sharded(args, construct, device=device, trainable=True, head="head")


def value_pass(args: Arguments, model: ValueModel, shard: RolloutShard, device: torch.device) -> list[Tensor]:
    """Return ``[R_i]`` values of every sample of the shard, on the CPU."""
    return per_sample_pass(args, model, shard, device, model)


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

    def _changing(self) -> Changing:
        return changing(self.model, self.optimizer, self.schedule)

    def _write(self, root: Path, iteration: int, meta: dict[str, Any]) -> Path:
        return checkpoint.save(root, iteration, self.model, self.optimizer, meta)

    def _read(self, folder: Path) -> dict[str, Any]:
        return checkpoint.load(folder, self.model, self.optimizer, wants_lora=False)
