"""One rank of the policy with Megatron: owns its part of the model and the optimizer, and a copy of the reference's weights.

The reference is a snapshot in host memory that the model takes on for its pass, so it costs no device memory; of a LoRA run it
is the frozen base.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from slime.backends.megatron_utils import parallel, snapshot
from slime.backends.megatron_utils.checkpoint import BACKEND, load_state, save_state
from slime.backends.megatron_utils.config import Shape, read_config, shape_of
from slime.backends.megatron_utils.device_memory import gradients_of, tensors_of
from slime.backends.megatron_utils.load_hf import load_hf_weights
from slime.backends.megatron_utils.lora import adapters_off, add_adapters
from slime.backends.megatron_utils.model import build_model, data_parallel, unwrapped
from slime.backends.megatron_utils.optimizer import build_optimizer
from slime.backends.megatron_utils.train_step import log_prob_pass, optimizer_step
from slime.backends.megatron_utils.weights import adapter_weights, full_weights
from slime.backends.trainer import checkpoint_folder
from slime.backends.trainer.actor import TrainActor
from slime.backends.trainer.dtypes import DTYPES
from slime.backends.trainer.lora import write_adapter
from slime.backends.trainer.micro_batch import Metrics
from slime.backends.trainer.rollout_data import RolloutShard
from slime.backends.trainer.together import on_rank_zero
from slime.utils.misc import load_function


class MegatronTrainActor(TrainActor):
    """See the module and :class:`TrainActor`."""

    shape: Shape
    _reference: snapshot.Snapshot | None = None

    def _build(self) -> None:
        args = self.args
        parallel.join(args, self.device)
        self.data_group = parallel.groups().get_data_parallel_group()
        if args.custom_megatron_init_path:
            load_function(args.custom_megatron_init_path)(args)
        start, reference = Path(self._start_weights()), Path(args.ref_load or args.hf_checkpoint)
        self.shape = shape_of(read_config(args.hf_checkpoint))
        model, config = build_model(args, str(start), device=self.device)
        if args.use_lora:
            add_adapters(args, unwrapped(model), self.shape)
        elif self._needs_reference():
            if reference != start:
                load_hf_weights(unwrapped(model), reference, self.shape)
            self._reference = snapshot.take(unwrapped(model))
            if reference != start:
                load_hf_weights(unwrapped(model), start, self.shape)
        model = data_parallel(model, config, device=self.device)
        self._set_model(model, build_optimizer(args, model, device=self.device))

    def _log_probs(self, data: RolloutShard, *, reference: bool) -> list[torch.Tensor]:
        if not reference:
            return self._pass(data, "")
        if self.args.use_lora:
            with adapters_off(unwrapped(self.model)):
                return self._pass(data, "ref_")
        assert self._reference is not None
        with snapshot.weights_of(unwrapped(self.model), self._reference):
            return self._pass(data, "ref_")

    def _pass(self, data: RolloutShard, prefix: str) -> list[torch.Tensor]:
        args = self.args
        if args.custom_megatron_before_log_prob_hook_path:
            load_function(args.custom_megatron_before_log_prob_hook_path)(args, [self.model], prefix)
        return log_prob_pass(args, self.model, data, self.device, self.shape.vocab_size)

    def _optimizer_step(self, data: RolloutShard, rollout_id: int, step: int) -> Metrics:
        args = self.args
        if args.custom_megatron_before_train_step_hook_path:
            hook = load_function(args.custom_megatron_before_train_step_hook_path)
            hook(args, rollout_id, step, [self.model], self.optimizer, self.schedule)
        return optimizer_step(
            args, self.model, self.optimizer, self.schedule, data, step, self.device, self.shape.vocab_size
        )

    def _weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        dtype = DTYPES[self.args.train_dtype]
        return full_weights(unwrapped(self.model), self.shape, dtype=dtype, of=self._value)

    def _sync_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        if self.args.update_weight_mode != "adapter":
            return self._weights()
        return iter(adapter_weights(unwrapped(self.model), of=self._value).items())

    def _device_tensors(self) -> tuple[Iterator[torch.Tensor], Iterator[torch.Tensor]]:
        return tensors_of(self.model, self.optimizer), gradients_of(self.model)

    def _common_meta(self, rollout_id: int) -> dict[str, Any]:
        return super()._common_meta(rollout_id) | {"backend": BACKEND, "optimizer": True}

    def _write(self, root: Path, iteration: int, meta: dict[str, Any]) -> Path:
        def write_state(path: Path) -> None:
            save_state(path, unwrapped(self.model), self.optimizer, self.device)

        folder = checkpoint_folder.write(root, iteration, meta, write_state)
        if self.args.use_lora:
            adapters = adapter_weights(unwrapped(self.model))
            on_rank_zero(lambda: write_adapter(self.args, adapters, folder / "adapter"))
        return folder

    def _read(self, folder: Path) -> dict[str, Any]:
        meta = load_state(folder, unwrapped(self.model), self.optimizer, self.device)
        checkpoint_folder.restore_rng(folder, meta)
        return meta

    def shutdown(self) -> None:
        """Leave Megatron's groups and the process groups."""
        parallel.leave()
        super().shutdown()
