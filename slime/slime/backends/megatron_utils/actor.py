"""One rank of the policy with Megatron: owns its part of model and optimizer, and a copy of the reference's weights.

The reference is a snapshot in host memory that the model loads for its pass, so it needs no device memory. For a LoRA
run it is the frozen base.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from slime.backends.megatron_utils import parallel, rank_memory
from slime.backends.megatron_utils.config import Shape, read_config, shape_of
from slime.backends.megatron_utils.load_hf import load_hf_weights
from slime.backends.megatron_utils.lora import adapters_off, add_adapters
from slime.backends.megatron_utils.model import build_model, unwrapped
from slime.backends.megatron_utils.rank import MegatronRank
from slime.backends.megatron_utils.routing_replay import RoutingReplay
from slime.backends.megatron_utils.schedule import Around
from slime.backends.megatron_utils.train_step import log_prob_pass, most_likely_pass, optimizer_step, policy_loss_of
from slime.backends.megatron_utils.weights import adapter_weights, full_weights
from slime.backends.trainer.actor import TrainActor
from slime.backends.trainer.lora import write_adapter
from slime.backends.trainer.micro_batch import Metrics
from slime.backends.trainer.rollout_data import RolloutShard
from slime.checkpoints.all_ranks import on_rank_zero
from slime.utils.hf_checkpoint import DTYPES


class MegatronTrainActor(MegatronRank, TrainActor):
    """See the module and :class:`TrainActor`."""

    shape: Shape
    _reference: rank_memory.Snapshot | None = None
    _replay: RoutingReplay | None = None

    def _build(self) -> None:
        args = self.args
        self._join_groups()
        self.data_group = parallel.groups().get_data_parallel_group()
        start, reference = Path(self._start_weights()), Path(args.ref_load or args.hf_checkpoint)
        self.shape = shape_of(read_config(args.hf_checkpoint))
        model, config = build_model(args, str(start), device=self.device)
        if args.use_lora:
            add_adapters(args, unwrapped(model), self.shape)
        elif self._needs_reference():
            if reference != start:
                load_hf_weights(unwrapped(model), reference, self.shape)
            self._reference = rank_memory.take(unwrapped(model))
            if reference != start:
                load_hf_weights(unwrapped(model), start, self.shape)
        if args.use_routing_replay:
            self._replay = RoutingReplay(unwrapped(model), from_engines=args.use_rollout_routing_replay)
        self._wrap(model, config)

    def _log_probs(self, data: RolloutShard, *, reference: bool) -> list[torch.Tensor]:
        if not reference:
            return self._pass(data, "")
        if self.args.use_lora:
            with adapters_off(unwrapped(self.model)):
                return self._pass(data, "ref_")
        assert self._reference is not None
        with rank_memory.weights_of(unwrapped(self.model), self._reference):
            return self._pass(data, "ref_")

    def _pass(self, data: RolloutShard, prefix: str) -> list[torch.Tensor]:
        self._before_pass(prefix)
        with self._routing(data, None, is_reference=bool(prefix)) as around:
            return log_prob_pass(self.args, self.model, data, self.device, self.shape.vocab_size, around=around)

    def _scores(self, data: RolloutShard) -> list[torch.Tensor]:
        self._before_pass("")
        args = self.args.changed(rollout_temperature=1.0)
        return log_prob_pass(args, self.model, data, self.device, self.shape.vocab_size)

    def _next_ids(self, data: RolloutShard) -> list[int]:
        return most_likely_pass(self.args, self.model, data, self.device, self.shape.vocab_size)

    def _routing(
        self, data: RolloutShard, step: int | None, is_reference: bool = False
    ) -> AbstractContextManager[Around | None]:
        """Return the source of experts for an optimizer step, or for a forward pass if ``step`` is None."""
        if self._replay is None:
            return nullcontext()
        if step is None and not (is_reference or self.args.use_rollout_routing_replay):
            return self._replay.recording()
        return self._replay.replaying(data, step)

    def _optimizer_step(self, data: RolloutShard, rollout_id: int, step: int) -> Metrics:
        self._before_step(rollout_id, step)
        loss_of = policy_loss_of(self.args, self.model, data, self.device, self.shape.vocab_size)
        in_parts = self.args.loss_type == "custom_loss"
        work = (self.args, self.model, self.optimizer, self.schedule, data, step, self.device)
        with self._routing(data, step) as around:
            return optimizer_step(*work, loss_of, in_parts=in_parts, around=around)

    def _weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        dtype = DTYPES[self.args.train_dtype]
        return full_weights(unwrapped(self.model), self.shape, dtype=dtype, of=self._value)

    def _sync_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        if self.args.update_weight_mode != "adapter":
            return self._weights()
        return iter(adapter_weights(unwrapped(self.model), of=self._value).items())

    def _write(self, root: Path, iteration: int, meta: dict[str, Any]) -> Path:
        folder = super()._write(root, iteration, meta)
        if self.args.use_lora:
            adapters = adapter_weights(unwrapped(self.model))
            on_rank_zero(lambda: write_adapter(self.args, adapters, folder / "adapter"))
        return folder
