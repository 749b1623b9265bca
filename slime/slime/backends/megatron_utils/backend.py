"""The Megatron back end of a rank: its part of the policy with a copy of the reference's weights, or of the critic.

The reference is a snapshot in host memory that the model loads for its pass, so it needs no device memory. For a LoRA
run it is the frozen base.

The critic is Megatron's model with a linear head, one number per token, instead of its output layer. Guarantees, as for
every critic: a value is read where the policy reads the token's probability, and a new head starts at zero and computes
in float32. The head's weights have the model's dtype, because Megatron-core 0.16.1 cannot store an optimizer with mixed
dtypes (the optimizer's own copy is float32), and are whole on every rank of the last pipeline stage. Tensor-parallel
ranks compute the same values, so their gradients are equal; those of context-parallel ranks add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from slime.args import Arguments
from slime.backends.megatron_utils import parallel
from slime.backends.megatron_utils.config import read_config, shape_of
from slime.backends.megatron_utils.context_parallel import share_of, whole_responses
from slime.backends.megatron_utils.load_hf import load_hf_weights
from slime.backends.megatron_utils.model import build_model, data_parallel, unwrapped
from slime.backends.megatron_utils.parallel import model_device
from slime.backends.megatron_utils.routing_replay import RoutingReplay
from slime.backends.megatron_utils.state import (
    BACKEND,
    HostWeights,
    build_optimizer,
    gradients_of,
    host_weights,
    load_state,
    optimizers_of,
    save_state,
    start_moments,
    tensors_of,
    weights_of,
)
from slime.backends.megatron_utils.train_step import (
    Around,
    log_prob_pass,
    most_likely_pass,
    optimizer_step,
    per_sample_pass,
    policy_loss_of,
)
from slime.backends.megatron_utils.weights import (
    adapter_weights,
    adapters_off,
    add_adapters,
    begin_adapters,
    full_weights,
)
from slime.backends.trainer.host_memory import Changing
from slime.backends.trainer.micro_batch import Metrics, MicroBatch, RolloutShard, value_micro_batch_loss
from slime.backends.trainer.probing import Continuation, Rounds, by_whole_passes
from slime.backends.trainer.rank import CriticRank, PolicyRank, needs_reference
from slime.backends.trainer.schedule import Schedule
from slime.backends.trainer.trainable import write_adapter
from slime.checkpoints import checkpoint_folder
from slime.checkpoints.all_ranks import on_rank_zero
from slime.logprobs.context_parallel import own_place
from slime.utils.hf_checkpoint import DTYPES
from slime.utils.misc import load_function


class MegatronBackend:
    """What policy and critic share: process groups, hooks, model, optimizer, and checkpoint state."""

    model: Any
    optimizer: Any

    def __init__(self, args: Arguments, device: torch.device, schedule: Schedule) -> None:
        self._args, self._device = args, device
        self.schedule = schedule
        self._join_groups()

    def _join_groups(self) -> None:
        """Create Megatron's groups, then call ``--custom-megatron-init-path``."""
        args = self._args
        parallel.join(args, self._device)
        if args.custom_megatron_init_path:
            load_function(args.custom_megatron_init_path)(args)

    def _wrap(self, model: Any, config: Any) -> None:
        """Wrap ``model`` for data parallelism and create its optimizer."""
        self.model = data_parallel(model, config, device=self._device)
        self.optimizer = build_optimizer(self._args, self.model, device=self._device)

    def _before_pass(self, prefix: str) -> None:
        args = self._args
        if args.custom_megatron_before_log_prob_hook_path:
            load_function(args.custom_megatron_before_log_prob_hook_path)(args, [self.model], prefix)

    def _before_step(self, rollout_id: int, step: int) -> None:
        args = self._args
        if args.custom_megatron_before_train_step_hook_path:
            hook = load_function(args.custom_megatron_before_train_step_hook_path)
            hook(args, rollout_id, step, [self.model], self.optimizer, self.schedule)

    def device_tensors(self) -> tuple[Iterator[Tensor], Iterator[Tensor]]:
        """See `Backend`."""
        return tensors_of(self.model, self.optimizer), gradients_of(self.model)

    def changing(self) -> Changing:
        """See `Backend`."""
        start_moments(self.optimizer)
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        weights = [*trained, *unwrapped(self.model).buffers()]
        return Changing(weights, (), optimizers_of(self.optimizer), self.schedule)

    def write(self, root: Path, iteration: int, meta: dict[str, Any]) -> Path:
        """See `Backend`."""

        def write_state(path: Path) -> None:
            save_state(path, unwrapped(self.model), self.optimizer, self._device)

        return checkpoint_folder.write(root, iteration, meta | {"backend": BACKEND, "optimizer": True}, write_state)

    def read(self, folder: Path) -> dict[str, Any]:
        """See `Backend`."""
        meta = load_state(folder, unwrapped(self.model), self.optimizer, self._device)
        checkpoint_folder.restore_rng(folder, meta)
        return meta

    def close(self) -> None:
        """Leave Megatron's groups."""
        parallel.leave()


class MegatronPolicy(MegatronBackend):
    """The policy; implements `PolicyBackend`."""

    _reference: HostWeights | None = None
    _replay: RoutingReplay | None = None

    def __init__(
        self,
        args: Arguments,
        start: str,
        device: torch.device,
        schedule: Schedule,
        value: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(args, device, schedule)
        self._value = value
        self.data_group: dist.ProcessGroup | None = parallel.groups().get_data_parallel_group()
        self.shape = shape_of(read_config(args.hf_checkpoint))
        reference = Path(args.ref_load or args.hf_checkpoint)
        model, config = build_model(args, str(Path(start)), device=device)
        if args.use_lora:
            add_adapters(args, unwrapped(model), self.shape)
        elif needs_reference(args):
            if reference != Path(start):
                load_hf_weights(unwrapped(model), reference, self.shape)
            self._reference = host_weights(unwrapped(model))
            if reference != Path(start):
                load_hf_weights(unwrapped(model), Path(start), self.shape)
        if args.use_routing_replay:
            self._replay = RoutingReplay(unwrapped(model), from_engines=args.use_rollout_routing_replay)
        self._wrap(model, config)

    # Passes

    def policy_pass(self, data: RolloutShard) -> tuple[list[Tensor], list[Tensor] | None]:
        """See `PolicyBackend`."""
        return self._pass(data, ""), None

    def reference_pass(self, data: RolloutShard) -> list[Tensor]:
        """See `PolicyBackend`."""
        if self._args.use_lora:
            with adapters_off(unwrapped(self.model)):
                return self._pass(data, "ref_")
        assert self._reference is not None
        with weights_of(unwrapped(self.model), self._reference):
            return self._pass(data, "ref_")

    def _pass(self, data: RolloutShard, prefix: str) -> list[Tensor]:
        self._before_pass(prefix)
        with self._routing(data, None, is_reference=bool(prefix)) as around:
            return log_prob_pass(self._args, self.model, data, self._device, self.shape.vocab_size, around=around)

    def scores(self, data: RolloutShard) -> list[Tensor]:
        """See `PolicyBackend`."""
        self._before_pass("")
        args = self._args.changed(rollout_temperature=1.0)
        return log_prob_pass(args, self.model, data, self._device, self.shape.vocab_size)

    def greedy(self, batches: list[list[Continuation]], rounds: Rounds) -> None:
        """Complete the replies; every token takes a forward pass over all tokens before it."""

        def next_ids(data: RolloutShard) -> list[int]:
            return most_likely_pass(self._args, self.model, data, self._device, self.shape.vocab_size)

        for batch in batches:
            by_whole_passes(batch, rounds, next_ids)

    def _routing(
        self, data: RolloutShard, step: int | None, is_reference: bool = False
    ) -> AbstractContextManager[Around | None]:
        """Return the source of experts for an optimizer step, or for a forward pass if ``step`` is None."""
        if self._replay is None:
            return nullcontext()
        if step is None and not (is_reference or self._args.use_rollout_routing_replay):
            return self._replay.recording()
        return self._replay.replaying(data, step)

    # Steps

    def before_steps(self) -> None:
        """No-op."""

    def optimizer_step(self, data: RolloutShard, rollout_id: int, step: int) -> Metrics:
        """See `Backend`."""
        self._before_step(rollout_id, step)
        loss_of = policy_loss_of(self._args, self.model, data, self._device, self.shape.vocab_size)
        in_parts = self._args.loss_type == "custom_loss"
        work = (self._args, self.model, self.optimizer, self.schedule, data, step, self._device)
        with self._routing(data, step) as around:
            return optimizer_step(*work, loss_of, in_parts=in_parts, around=around)

    def after_steps(self, rollout_id: int) -> None:
        """No-op."""

    # State

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `PolicyBackend`."""
        dtype = DTYPES[self._args.train_dtype]
        return full_weights(unwrapped(self.model), self.shape, dtype=dtype, of=self._value)

    def begin_adapter(self, seed: int) -> None:
        """See `PolicyBackend`."""
        begin_adapters(unwrapped(self.model), seed)
        with model_device(self._device):
            self.optimizer.reload_model_params()

    def pushed_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `PolicyBackend`."""
        if self._args.update_weight_mode != "adapter":
            return self.weights()
        return iter(adapter_weights(unwrapped(self.model), of=self._value).items())

    def write(self, root: Path, iteration: int, meta: dict[str, Any]) -> Path:
        """See `Backend`."""
        folder = super().write(root, iteration, meta)
        if self._args.use_lora:
            adapters = adapter_weights(unwrapped(self.model))
            on_rank_zero(lambda: write_adapter(self._args, adapters, folder / "adapter"))
        return folder


class MegatronTrainActor(PolicyRank):
    """A rank of the policy with Megatron."""

    make_backend = MegatronPolicy


# The critic


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


class MegatronCritic(MegatronBackend):
    """The critic; implements `CriticBackend`."""

    def __init__(self, args: Arguments, start: str, device: torch.device, schedule: Schedule) -> None:
        super().__init__(args, device, schedule)
        self._wrap(*build_critic(args, start, device=device))

    def value_pass(self, data: RolloutShard) -> list[Tensor]:
        """See `CriticBackend`."""
        self._before_pass("")
        return value_pass(self._args, self.model, data, self._device)

    def optimizer_step(self, data: RolloutShard, rollout_id: int, step: int) -> Metrics:
        """See `Backend`."""
        self._before_step(rollout_id, step)

        def loss_of(indices: list[int], hidden: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            model = unwrapped(self.model)
            return value_micro_batch_loss(
                self._args, lambda batch: values_of(model, hidden, batch), data, indices, self._device
            )

        work = (self._args, self.model, self.optimizer, self.schedule, data, step, self._device)
        return optimizer_step(*work, loss_of)


class MegatronCriticActor(CriticRank):
    """A rank of the critic with Megatron."""

    make_backend = MegatronCritic
