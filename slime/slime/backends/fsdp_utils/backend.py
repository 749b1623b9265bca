"""The FSDP2 back end of a rank: the policy with its reference, the critic, their passes over a shard, and a step.

Guarantees: a step's gradient is that of ``sum over all samples of all ranks / denominator``, for any number of ranks
and micro-batches. FSDP averages over ranks, so a rank's loss is multiplied by their number. Every rank runs the same
number of forward and backward passes. After every ``--ref-update-interval`` the reference has the policy's weights,
rounded to its own precision; a checkpoint contains such a reference, so a resumed run uses the same one. A critic's
value of a response token is read where the policy reads its probability, from the hidden state before it; its head
starts at zero, so a new critic predicts a return of 0 everywhere, and computes in float32.

A step with a NaN or infinite gradient norm changes nothing (weights, moments, schedule) on any rank, because the global norm
decides. Weight decay applies to matrices only. A checkpoint is torch DCP with weights and optimizer by parameter name, which any
number of ranks can load. A LoRA run stores only its adapters; parameters frozen by name are stored too.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from slime.args import Arguments
from slime.backends.fsdp_utils.attention import PACKED
from slime.backends.fsdp_utils.layers import layers_as_written, set_checkpointing
from slime.backends.fsdp_utils.model import (
    PolicyModel,
    adapter_weights,
    adapters_off,
    begin_adapters,
    build_policy,
    export_adapter,
    full_weights,
    hidden_states,
    load_hf,
    sharded,
    text_layers,
)
from slime.backends.trainer.host_memory import Changing
from slime.backends.trainer.micro_batch import (
    Metrics,
    MicroBatch,
    RolloutShard,
    add_metrics,
    held_back,
    mean_over_ranks,
    micro_batch_loss,
    model_input,
    to_cpu,
    value_micro_batch_loss,
)
from slime.backends.trainer.probing import Continuation, Rounds, by_whole_passes
from slime.backends.trainer.rank import CriticRank, PolicyRank, needs_reference
from slime.backends.trainer.schedule import Schedule
from slime.checkpoints.checkpoint_folder import read_meta, restore_rng, write
from slime.exceptions import CheckpointError
from slime.logprobs.response_rows import ResponseRows
from slime.utils.hf_checkpoint import DTYPES
from slime.utils.metric_names import HELD

logger = logging.getLogger(__name__)

LossOfMicroBatch = Callable[[Arguments, Any, RolloutShard, list[int], torch.device], tuple[Tensor, dict[str, Tensor]]]
REFERENCE_FOLDER = "reference"
"""Of a checkpoint: a reference that follows the policy."""


# Optimizer, and checkpoint state


def build_optimizer(args: Arguments, model: nn.Module) -> torch.optim.AdamW:
    """Return AdamW (Loshchilov & Hutter 2019) over the parameters that require a gradient."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": args.weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(
        groups, lr=args.lr, betas=(args.adam_beta1, args.adam_beta2), eps=args.adam_eps, fused=True
    )


def start_moments(optimizer: torch.optim.AdamW) -> None:
    """Create the initial moments of parameters that no step has changed yet.

    A vision tower has none until a rollout has an image, but a checkpoint needs them for every parameter.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.state.get(parameter):
                optimizer.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }


def apply_gradients(
    model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Schedule, clip_grad: float, *, hold: bool = False
) -> tuple[float, float, bool]:
    """Clip to the global norm ``clip_grad`` (0 or less: no clipping), step, and clear the gradients.

    ``hold``: take no step.

    Returns:
        The norm before clipping, the learning rate, and whether the step was taken.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    rate = schedule.lr()
    finite = bool(torch.isfinite(norm))
    taken = finite and not hold
    if taken:
        for group in optimizer.param_groups:
            group["lr"] = rate
        if clip_grad > 0 and all(kernel_clips(gradient) for gradient in gradients):
            clipping_step(optimizer, norm, clip_grad)
        else:
            if clip_grad > 0:
                torch.nn.utils.clip_grads_with_norm_(model.parameters(), clip_grad, norm)
            optimizer.step()
        schedule.steps += 1
    elif not finite:
        logger.error("gradient norm is %s: skipping this optimizer step, the weights stay unchanged", norm.item())
    optimizer.zero_grad(set_to_none=True)
    return float(norm), rate, taken


def kernel_clips(gradient: Tensor) -> bool:
    """Return whether fused AdamW may clip ``gradient``: whole and on a GPU. A CPU clips apart, so its bits stay."""
    return gradient.is_cuda and not isinstance(gradient, DTensor)


def clipping_step(optimizer: torch.optim.Optimizer, norm: Tensor, clip_grad: float) -> None:
    """Step with gradients divided by ``max(1, norm / clip_grad)`` inside fused AdamW.

    Clipping apart reads and writes 8 bytes per parameter. AdamW stores the divided gradient, so this saves 4 of them.
    """
    optimizer.grad_scale = ((norm + 1e-6) / clip_grad).clamp(min=1.0)  # type: ignore[attr-defined]
    try:
        optimizer.step()
    finally:
        optimizer.grad_scale = None  # type: ignore[attr-defined]


def free_whole_parameters(model: nn.Module) -> None:
    """Reshard the root's parameters, which a forward pass leaves gathered."""
    if isinstance(model, FSDPModule):
        model.reshard()


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[torch.Tensor]:
    """Yield this rank's parameters, their gradients, the buffers, and the moments of ``optimizer``."""
    free_whole_parameters(model)
    for parameter in model.parameters():
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad
    yield from model.buffers()
    for state in optimizer.state.values() if optimizer is not None else ():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def changing(
    model: nn.Module, optimizer: torch.optim.AdamW, schedule: Schedule, others: Sequence[torch.Tensor] = ()
) -> Changing:
    """Return what a step changes, ``others`` included; every parameter gets its moments."""
    free_whole_parameters(model)
    start_moments(optimizer)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Changing([*trained, *model.buffers()], others, [optimizer], schedule)


def save_checkpoint(
    root: Path, iteration: int, model: torch.nn.Module, optimizer: torch.optim.AdamW, meta: dict[str, Any]
) -> Path:
    """Write a checkpoint, not yet marked as the latest, and return its folder; collective."""
    start_moments(optimizer)

    def write_state(path: Path) -> None:
        weights, moments = get_state_dict(model, optimizer, options=StateDictOptions(ignore_frozen_params=meta["lora"]))
        dcp_save({"model": weights, "optimizer": moments}, checkpoint_id=str(path))

    return write(root, iteration, meta, write_state)


def load_checkpoint(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, wants_lora: bool
) -> dict[str, Any]:
    """Load ``folder`` into ``model`` and ``optimizer`` and return its metadata; collective, on any number of ranks."""
    meta = read_meta(folder)
    if meta.get("backend", "fsdp") != "fsdp":
        raise CheckpointError(f"{folder} was written by {meta['backend']}: add --train-backend {meta['backend']}")
    if meta["lora"] != wants_lora:
        kind = "LoRA adapters" if meta["lora"] else "full weights"
        raise CheckpointError(f"{folder} holds {kind}: {'add' if meta['lora'] else 'remove'} --use-lora")
    options = StateDictOptions(ignore_frozen_params=meta["lora"], strict=not meta["lora"])
    weights, moments = get_state_dict(model, optimizer, options=options)
    dcp_load({"model": weights, "optimizer": moments}, checkpoint_id=str(folder / "state"))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments, options=options)
    restore_rng(folder, meta)
    return meta


# The policy


class FSDPPolicy:
    """The policy's shard, its optimizer, and its reference model; implements `PolicyBackend`."""

    data_group: dist.ProcessGroup | None = None
    reference: PolicyModel | None = None

    def __init__(
        self,
        args: Arguments,
        start: str,
        device: torch.device,
        schedule: Schedule,
        value: Callable[[Tensor], Tensor],
    ) -> None:
        if args.loss_type == "custom_loss":
            group_of_one()
        self._args, self._device, self._value = args, device, value
        self.schedule = schedule
        self.model = build_policy(args, start, device=device)
        self.optimizer = build_optimizer(args, self.model)
        if needs_reference(args) and not args.use_lora:
            self.reference = build_policy(args, args.ref_load or args.hf_checkpoint, device=device, trainable=False)

    # Passes

    def policy_pass(self, data: RolloutShard) -> tuple[list[Tensor], list[Tensor] | None]:
        """See `PolicyBackend`."""
        log_probs, entropy = logprob_pass_with_entropy(self._args, self.model, data, self._device)
        return log_probs, entropy if self._args.use_rollout_entropy else None

    def reference_pass(self, data: RolloutShard) -> list[Tensor]:
        """See `PolicyBackend`; the reference of a LoRA run is the policy without adapters."""
        if self.reference is not None:
            return log_prob_pass(self._args, self.reference, data, self._device)
        with adapters_off(self.model):
            return log_prob_pass(self._args, self.model, data, self._device)

    def scores(self, data: RolloutShard) -> list[Tensor]:
        """See `PolicyBackend`."""
        return log_prob_pass(self._args.changed(rollout_temperature=1.0), self.model, data, self._device)

    def greedy(self, batches: list[list[Continuation]], rounds: Rounds) -> None:
        """Complete the replies with a key-value cache, or by whole passes of a model that has no such cache."""
        cached = has_cache(self.model)
        for batch in batches:
            if cached:
                with layers_as_written(self._args):
                    by_cache(self.model, batch, rounds, self._device, self._args.log_probs_chunk_size)
            else:
                by_whole_passes(batch, rounds, lambda data: next_ids(self._args, self.model, data, self._device))

    # Steps

    def before_steps(self) -> None:
        """Forget the moments if flags request it."""
        if self._args.reset_optimizer_states:
            self.optimizer.state.clear()

    def optimizer_step(self, data: RolloutShard, rollout_id: int, step: int) -> Metrics:
        """See `Backend`."""
        return optimizer_step(self._args, self.model, self.optimizer, self.schedule, data, step, self._device)

    def after_steps(self, rollout_id: int) -> None:
        """Update the reference if it is due."""
        interval = self._args.ref_update_interval
        if self.reference is not None and interval is not None and (rollout_id + 1) % interval == 0:
            follow(self.reference, self.model)

    # State

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `PolicyBackend`."""
        dtype = DTYPES[self._args.train_dtype]
        return ((name, value.to(dtype)) for name, value in self._whole_weights())

    def _whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        dtype = DTYPES[self._args.train_dtype]
        return full_weights(self.model, dtype=dtype, device=self._device, of=self._value)

    def begin_adapter(self, seed: int) -> None:
        """See `PolicyBackend`."""
        free_whole_parameters(self.model)
        begin_adapters(self.model, seed)

    def pushed_weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `PolicyBackend`."""
        if self._args.update_weight_mode != "adapter":
            return self._whole_weights()
        return iter(adapter_weights(self.model, device=self._device, of=self._value).items())

    def device_tensors(self) -> tuple[Iterator[Tensor], Iterator[Tensor]]:
        """See `Backend`."""
        reference = tensors_of(self.reference) if self.reference is not None else ()
        return chain(tensors_of(self.model, self.optimizer), reference), iter(())

    def changing(self) -> Changing:
        """See `Backend`."""
        reference = self._moving_reference
        others = list(tensors_of(reference)) if reference is not None else []
        return changing(self.model, self.optimizer, self.schedule, others)

    def write(self, root: Path, iteration: int, meta: dict[str, Any]) -> Path:
        """See `Backend`."""
        folder = save_checkpoint(root, iteration, self.model, self.optimizer, meta)
        if self._args.use_lora:
            export_adapter(self._args, self.model, folder / "adapter", device=self._device)
        if self._moving_reference is not None:
            state = {"model": get_model_state_dict(self._moving_reference)}
            dcp_save(state, checkpoint_id=str(folder / REFERENCE_FOLDER))
        return folder

    def read(self, folder: Path) -> dict[str, Any]:
        """See `Backend`."""
        meta = load_checkpoint(folder, self.model, self.optimizer, wants_lora=bool(self._args.use_lora))
        if self._moving_reference is not None:
            load_reference(self._moving_reference, folder)
        return meta

    @property
    def _moving_reference(self) -> PolicyModel | None:
        return self.reference if self._args.ref_update_interval is not None else None

    def close(self) -> None:
        """No-op: there is no group but the default one."""


class FSDPTrainActor(PolicyRank):
    """A rank of the policy with FSDP2."""

    make_backend = FSDPPolicy


def group_of_one() -> None:
    """Initialise Megatron's groups without model parallelism if a plugin imported Megatron; collective."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is not None and not state.model_parallel_is_initialized():
        state.initialize_model_parallel(tensor_model_parallel_size=1)


@torch.no_grad()
def follow(reference: nn.Module, policy: nn.Module) -> None:
    """Copy every parameter of ``policy``; both have the same sharding, so ranks need not communicate."""
    for model in (reference, policy):
        free_whole_parameters(model)
    sources = dict(policy.named_parameters())
    for name, parameter in reference.named_parameters():
        _local(parameter).copy_(_local(sources[name]))


def _local(parameter: Tensor) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def load_reference(reference: nn.Module, folder: Path) -> None:
    """Restore a checkpoint's reference; without one keep --ref-load's and log a warning. Collective."""
    if not (folder / REFERENCE_FOLDER).is_dir():
        logger.warning("%s holds no reference; using --ref-load's until the next update", folder)
        return
    state = {"model": get_model_state_dict(reference)}
    dcp_load(state, checkpoint_id=str(folder / REFERENCE_FOLDER))
    set_model_state_dict(reference, state["model"])


# The critic


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
            set_checkpointing(args, hf, text_layers(hf.base_model))
        return ValueModel(hf, implementation)

    return sharded(args, construct, device=device, trainable=True, head="head")


def value_pass(args: Arguments, model: ValueModel, shard: RolloutShard, device: torch.device) -> list[Tensor]:
    """Return ``[R_i]`` values of every sample of the shard, on the CPU."""
    return per_sample_pass(args, model, shard, device, model)


class FSDPCritic:
    """The critic's shard and its optimizer; implements `CriticBackend`."""

    def __init__(self, args: Arguments, start: str, device: torch.device, schedule: Schedule) -> None:
        self._args, self._device = args, device
        self.schedule = schedule
        self.model = build_critic(args, start, device=device)
        self.optimizer = build_optimizer(args, self.model)

    def value_pass(self, data: RolloutShard) -> list[Tensor]:
        """See `CriticBackend`."""
        return value_pass(self._args, self.model, data, self._device)

    def optimizer_step(self, data: RolloutShard, rollout_id: int, step: int) -> Metrics:
        """See `Backend`."""
        work = (self._args, self.model, self.optimizer, self.schedule, data, step, self._device)
        return optimizer_step(*work, loss_of=value_micro_batch_loss)

    def device_tensors(self) -> tuple[Iterator[Tensor], Iterator[Tensor]]:
        """See `Backend`."""
        return tensors_of(self.model, self.optimizer), iter(())

    def changing(self) -> Changing:
        """See `Backend`."""
        return changing(self.model, self.optimizer, self.schedule)

    def write(self, root: Path, iteration: int, meta: dict[str, Any]) -> Path:
        """See `Backend`."""
        return save_checkpoint(root, iteration, self.model, self.optimizer, meta)

    def read(self, folder: Path) -> dict[str, Any]:
        """See `Backend`."""
        return load_checkpoint(folder, self.model, self.optimizer, wants_lora=False)

    def close(self) -> None:
        """No-op: there is no group but the default one."""


class FSDPCriticActor(CriticRank):
    """A rank of the critic with FSDP2."""

    make_backend = FSDPCritic


# Passes over a shard, and a step


@torch.no_grad()
def per_sample_pass(
    args: Arguments,
    model: torch.nn.Module,
    shard: RolloutShard,
    device: torch.device,
    forward: Callable[[MicroBatch], Tensor],
) -> list[Tensor]:
    """Return ``forward``'s value per response row as ``[R_i]`` per sample of the shard, on the CPU."""
    training = model.training
    model.eval()
    there: dict[int, Tensor] = {}
    for step in shard.micro_batches:
        for indices in step:
            inputs = model_input(args, shard, indices, device)
            there |= dict(zip(indices, inputs.per_sample(forward(inputs)), strict=True))
    model.train(training)
    results = to_cpu(there)
    return [results.get(index, torch.empty(0)) for index in range(shard.num_samples)]


def log_prob_pass(args: Arguments, model: PolicyModel, shard: RolloutShard, device: torch.device) -> list[Tensor]:
    """Return ``[R_i]`` log probabilities of every sample of the shard under ``model``, on the CPU."""
    return logprob_pass_with_entropy(args, model, shard, device)[0]


def logprob_pass_with_entropy(
    args: Arguments, model: PolicyModel, shard: RolloutShard, device: torch.device
) -> tuple[list[Tensor], list[Tensor]]:
    """Return log probabilities and entropies, ``[R_i]`` each per sample of the shard under ``model``, on the CPU."""

    def forward(inputs: MicroBatch) -> Tensor:
        both = model(inputs, temperature=args.rollout_temperature, chunk_size=args.log_probs_chunk_size)
        return torch.stack(both, dim=-1)

    both = per_sample_pass(args, model, shard, device, forward)
    pairs = [values.reshape(-1, 2) for values in both]
    return [pair[:, 0].contiguous() for pair in pairs], [pair[:, 1].contiguous() for pair in pairs]


def optimizer_step(
    args: Arguments,
    model: Any,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule,
    shard: RolloutShard,
    step: int,
    device: torch.device,
    loss_of: LossOfMicroBatch = micro_batch_loss,
) -> Metrics:
    """Take optimizer step ``step`` of the shard and return its metrics, equal on all ranks."""
    counts = shard.global_token_counts if args.calculate_per_token_loss else shard.global_batch_sizes
    denominator = max(1, counts[step])
    sums: dict[str, Tensor] = {}
    for indices in shard.micro_batches[step]:
        loss, metrics = loss_of(args, model, shard, indices, device)
        (loss * (dist.get_world_size() / denominator)).backward()
        add_metrics(sums, metrics, device)
    result = mean_over_ranks(sums, denominator)
    result |= held_back(args, result)
    norm, rate, taken = apply_gradients(model, optimizer, schedule, args.clip_grad, hold=bool(result.get(HELD)))
    return result | {"grad_norm": norm, "lr-pg_0": rate, "skipped_steps": float(not taken)}


# Greedy replies


def has_cache(policy: PolicyModel) -> bool:
    """Return whether keys and values are all that the model keeps between tokens; say so once if not."""
    if not getattr(policy.hf, "_is_stateful", False):
        return True
    logger.info(
        "%s keeps a state besides keys and values: greedy replies take a whole pass per token", type(policy.hf).__name__
    )
    return False


@torch.no_grad()
def by_cache(
    policy: PolicyModel, batch: list[Continuation], rounds: Rounds, device: torch.device, chunk_size: int
) -> None:
    """Complete a micro-batch's replies, one token per pass; collective.

    A micro-batch is padded on the left, so all its prompts end in the same column and grow together.
    """
    from transformers import DynamicCache

    training = policy.training
    policy.eval()
    prompts = [continuation.prompt_ids for continuation in batch] or [[0]]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache = DynamicCache(config=policy.hf.config.get_text_config())
    with _padded_attention(policy):
        while rounds.go_on(batch):
            tokens: Tensor = policy.next_ids(ids, mask, positions, cache, chunk_size)
            for continuation, token in zip(batch, tokens.tolist(), strict=False):
                continuation.add(token, rounds.ends)
            ids, positions = tokens.unsqueeze(-1), positions[:, -1:] + 1
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
    policy.train(training)


@contextmanager
def _padded_attention(policy: PolicyModel) -> Iterator[None]:
    """Run the block with an attention that reads a mask, in place of the one for packs."""
    if policy.implementation not in PACKED.values():
        yield
        return
    config = policy.hf.config.get_text_config()
    config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        config._attn_implementation = policy.implementation


def next_ids(args: Arguments, policy: PolicyModel, shard: RolloutShard, device: torch.device) -> list[int]:
    """Return the most likely token at the place of each sample's last one; responses have one token."""

    def forward(inputs: MicroBatch) -> Tensor:
        chunk = args.log_probs_chunk_size
        return policy(inputs, temperature=1.0, chunk_size=chunk, of_rows=ResponseRows.most_likely)

    return [int(token) for token in per_sample_pass(args, policy, shard, device, forward)]
