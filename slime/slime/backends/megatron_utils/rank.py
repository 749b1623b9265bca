"""Base of every Megatron rank, for policy or critic: process groups, hooks and checkpoint state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from slime.backends.megatron_utils import parallel
from slime.backends.megatron_utils.checkpoint import BACKEND, load_state, save_state, start_moments
from slime.backends.megatron_utils.model import data_parallel, unwrapped
from slime.backends.megatron_utils.optimizer import build_optimizer
from slime.backends.megatron_utils.rank_memory import gradients_of, optimizers_of, tensors_of
from slime.backends.trainer.rank import TrainRank
from slime.backends.trainer.snapshot import Changing
from slime.checkpoints import checkpoint_folder
from slime.utils.misc import load_function


class MegatronRank(TrainRank):
    """Owner of this rank's part of the model and the optimizer."""

    def _join_groups(self) -> None:
        """Create Megatron's groups, then call ``--custom-megatron-init-path``."""
        parallel.join(self.args, self.device)
        if self.args.custom_megatron_init_path:
            load_function(self.args.custom_megatron_init_path)(self.args)

    def _wrap(self, model: Any, config: Any) -> None:
        """Wrap ``model`` for data parallelism and create its optimizer."""
        model = data_parallel(model, config, device=self.device)
        self._set_model(model, build_optimizer(self.args, model, device=self.device))

    def _before_pass(self, prefix: str) -> None:
        args = self.args
        if args.custom_megatron_before_log_prob_hook_path:
            load_function(args.custom_megatron_before_log_prob_hook_path)(args, [self.model], prefix)

    def _before_step(self, rollout_id: int, step: int) -> None:
        args = self.args
        if args.custom_megatron_before_train_step_hook_path:
            hook = load_function(args.custom_megatron_before_train_step_hook_path)
            hook(args, rollout_id, step, [self.model], self.optimizer, self.schedule)

    def _device_tensors(self) -> tuple[Iterator[torch.Tensor], Iterator[torch.Tensor]]:
        return tensors_of(self.model, self.optimizer), gradients_of(self.model)

    def _changing(self) -> Changing:
        start_moments(self.optimizer)
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        weights = [*trained, *unwrapped(self.model).buffers()]
        return Changing(weights, (), optimizers_of(self.optimizer), self.schedule)

    def _common_meta(self, rollout_id: int) -> dict[str, Any]:
        return super()._common_meta(rollout_id) | {"backend": BACKEND, "optimizer": True}

    def _write(self, root: Path, iteration: int, meta: dict[str, Any]) -> Path:
        def write_state(path: Path) -> None:
            save_state(path, unwrapped(self.model), self.optimizer, self.device)

        return checkpoint_folder.write(root, iteration, meta, write_state)

    def _read(self, folder: Path) -> dict[str, Any]:
        meta = load_state(folder, unwrapped(self.model), self.optimizer, self.device)
        checkpoint_folder.restore_rng(folder, meta)
        return meta

    def shutdown(self) -> None:
        """Leave Megatron's groups and the process groups."""
        parallel.leave()
        super().shutdown()
