"""One rank of the policy with FSDP2: owns its shard and its reference model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from slime.backends.fsdp_utils import checkpoint, greedy, moving_reference
from slime.backends.fsdp_utils.lora import adapters_off
from slime.backends.fsdp_utils.model import PolicyModel, build_policy
from slime.backends.fsdp_utils.optimizer import build_optimizer, changing, tensors_of
from slime.backends.fsdp_utils.train_step import log_prob_pass, logprob_pass_with_entropy, optimizer_step
from slime.backends.fsdp_utils.weights import adapter_weights, export_adapter, full_weights
from slime.backends.trainer.actor import TrainActor
from slime.backends.trainer.micro_batch import Metrics
from slime.backends.trainer.probing import Continuation, Rounds
from slime.backends.trainer.rollout_data import RolloutShard
from slime.backends.trainer.snapshot import Changing
from slime.utils.hf_checkpoint import DTYPES


def group_of_one() -> None:
    """Initialise Megatron's groups without model parallelism if a plugin imported Megatron; collective."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is not None and not state.model_parallel_is_initialized():
        state.initialize_model_parallel(tensor_model_parallel_size=1)


class FSDPTrainActor(TrainActor):
    """See the module and :class:`TrainActor`."""

    _reference: PolicyModel | None = None

    @property
    def policy(self) -> PolicyModel:
        """The trained model."""
        return self.model

    def _build(self) -> None:
        args = self.args
        if args.loss_type == "custom_loss":
            group_of_one()
        policy = build_policy(args, self._start_weights(), device=self.device)
        self._set_model(policy, build_optimizer(args, policy))
        if self._needs_reference() and not args.use_lora:
            self._reference = build_policy(
                args, args.ref_load or args.hf_checkpoint, device=self.device, trainable=False
            )

    def _log_probs(self, data: RolloutShard, *, reference: bool) -> list[torch.Tensor]:
        if not reference:
            return log_prob_pass(self.args, self.policy, data, self.device)
        if self._reference is not None:
            return log_prob_pass(self.args, self._reference, data, self.device)
        with adapters_off(self.policy):
            return log_prob_pass(self.args, self.policy, data, self.device)

    def _policy_pass(self, data: RolloutShard) -> tuple[list[torch.Tensor], list[torch.Tensor] | None]:
        log_probs, entropy = logprob_pass_with_entropy(self.args, self.policy, data, self.device)
        return log_probs, entropy if self.args.use_rollout_entropy else None

    def step(self, rollout_id: int, learn: bool = True) -> dict[str, Any] | None:
        """Take the steps as every back end does; reset moments and update the reference if flags request it."""
        if self.args.reset_optimizer_states:
            self.optimizer.state.clear()
        result = super().step(rollout_id, learn)
        if self._reference is not None and moving_reference.is_due(rollout_id, self.args.ref_update_interval):
            moving_reference.follow(self._reference, self.policy)
        return result

    def _optimizer_step(self, data: RolloutShard, rollout_id: int, step: int) -> Metrics:
        return optimizer_step(self.args, self.policy, self.optimizer, self.schedule, data, step, self.device)

    def _weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return full_weights(self.policy, dtype=DTYPES[self.args.train_dtype], device=self.device, of=self._value)

    def _sync_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        if self.args.update_weight_mode != "adapter":
            return self._weights()
        return iter(adapter_weights(self.policy, device=self.device, of=self._value).items())

    def _device_tensors(self) -> tuple[Iterator[torch.Tensor], Iterator[torch.Tensor]]:
        reference = tensors_of(self._reference) if self._reference is not None else ()
        return chain(tensors_of(self.policy, self.optimizer), reference), iter(())

    def _changing(self) -> Changing:
        moves = self._reference is not None and self.args.ref_update_interval is not None
        reference = list(tensors_of(self._reference)) if moves and self._reference is not None else []
        return changing(self.policy, self.optimizer, self.schedule, reference)

    def _scores(self, data: RolloutShard) -> list[torch.Tensor]:
        return log_prob_pass(self.args.changed(rollout_temperature=1.0), self.policy, data, self.device)

    def _next_ids(self, data: RolloutShard) -> list[int]:
        return greedy.next_ids(self.args, self.policy, data, self.device)

    def _greedy(self, batches: list[list[Continuation]], rounds: Rounds) -> None:
        if not greedy.has_cache(self.policy):
            return super()._greedy(batches, rounds)
        for batch in batches:
            greedy.by_cache(self.policy, batch, rounds, self.device, self.args.log_probs_chunk_size)

    def _write(self, root: Path, iteration: int, meta: dict[str, Any]) -> Path:
        folder = checkpoint.save(root, iteration, self.policy, self.optimizer, meta)
        if self.args.use_lora:
            export_adapter(self.args, self.policy, folder / "adapter", device=self.device)
        if self._reference is not None and self.args.ref_update_interval is not None:
            moving_reference.save(self._reference, folder)
        return folder

    def _read(self, folder: Path) -> dict[str, Any]:
        meta = checkpoint.load(folder, self.policy, self.optimizer, wants_lora=bool(self.args.use_lora))
        if self._reference is not None and self.args.ref_update_interval is not None:
            moving_reference.load(self._reference, folder)
        return meta
