"""Forward passes over a shard, and one optimizer step.

Guarantees: the gradient of a step is that of ``sum over all samples of all ranks / denominator``, whatever the number of
ranks and micro-batches (FSDP averages over ranks, so the loss of a rank is multiplied by their number); every rank runs the
same number of forward and backward passes.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from slime.algorithms.losses import LOSSES
from slime.algorithms.losses.custom import custom_loss
from slime.algorithms.losses.reduce import Reducer, make_reducer
from slime.backends.fsdp_utils.model import PolicyModel
from slime.backends.fsdp_utils.optimizer import apply_gradients
from slime.backends.trainer.packing import MicroBatch, build
from slime.backends.trainer.rollout_data import RolloutShard
from slime.backends.trainer.schedule import Schedule
from slime.utils.misc import load_function

Metrics = dict[str, float]
LossOfMicroBatch = Callable[[Namespace, Any, RolloutShard, list[int], torch.device], tuple[Tensor, dict[str, Tensor]]]


def model_input(args: Namespace, shard: RolloutShard, indices: list[int], device: torch.device) -> MicroBatch:
    """The model input of the samples ``indices`` of ``shard``."""
    lengths = shard.fields["response_lengths"]
    return build(
        [shard.tokens[i] for i in indices], [lengths[i] for i in indices], packed=args.pack_sequences, device=device
    )


@torch.no_grad()
def per_sample_pass(
    args: Namespace,
    model: torch.nn.Module,
    shard: RolloutShard,
    device: torch.device,
    forward: Callable[[MicroBatch], Tensor],
) -> list[Tensor]:
    """Return ``[R_i]`` per sample of the shard, on the CPU, of what ``forward`` gives per response row of a micro-batch."""
    training = model.training
    model.eval()
    results: list[Tensor] = [torch.empty(0)] * shard.num_samples
    for step in shard.micro_batches:
        for indices in step:
            inputs = model_input(args, shard, indices, device)
            for index, values in zip(indices, inputs.per_sample(forward(inputs)), strict=True):
                results[index] = values.cpu()
    model.train(training)
    return results


def log_prob_pass(args: Namespace, model: PolicyModel, shard: RolloutShard, device: torch.device) -> list[Tensor]:
    """Return ``[R_i]`` log probabilities of every sample of the shard under ``model``, on the CPU."""
    return logprob_pass_with_entropy(args, model, shard, device)[0]


def logprob_pass_with_entropy(
    args: Namespace, model: PolicyModel, shard: RolloutShard, device: torch.device
) -> tuple[list[Tensor], list[Tensor]]:
    """Return log probabilities and entropies, ``[R_i]`` each per sample of the shard under ``model``, on the CPU."""

    def forward(inputs: MicroBatch) -> Tensor:
        both = model(inputs, temperature=args.rollout_temperature, chunk_size=args.log_probs_chunk_size)
        return torch.stack(both, dim=-1)

    both = per_sample_pass(args, model, shard, device, forward)
    pairs = [values.reshape(-1, 2) for values in both]
    return [pair[:, 0].contiguous() for pair in pairs], [pair[:, 1].contiguous() for pair in pairs]


def reducer_of(args: Namespace, batch: dict[str, Any], response_lengths: list[int]) -> Reducer:
    """The reducer of a micro-batch, which may be empty."""
    masks, sums = batch.get("loss_masks", []), batch.get("rollout_mask_sums")
    return make_reducer(args.calculate_per_token_loss, response_lengths, masks, sums)


def micro_batch_loss(
    args: Namespace, model: PolicyModel, shard: RolloutShard, indices: list[int], device: torch.device
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the summed loss of a micro-batch and its summed metrics; an empty one gives zero with a gradient path."""
    inputs = model_input(args, shard, indices, device)
    batch = shard.batch(indices, device)
    reduce = reducer_of(args, batch, inputs.response_lengths)
    if args.loss_type == "custom_loss":
        logits = model(inputs, temperature=1.0, chunk_size=args.log_probs_chunk_size, want_logits=True)
        if inputs.is_filler:
            return logits.sum() * 0.0, {}
        return custom_loss(load_function(args.custom_loss_function_path), args, batch, logits, reduce)
    log_probs, entropy = model(
        inputs,
        temperature=args.rollout_temperature,
        chunk_size=args.log_probs_chunk_size,
        entropy_grad=args.loss_type == "policy_loss" and args.entropy_coef != 0,
    )
    if inputs.is_filler or not sum(inputs.response_lengths):
        return (log_probs.sum() + entropy.sum()) * 0.0, {}
    if args.loss_type == "policy_loss" and args.use_rollout_logprobs:
        batch["log_probs"] = batch["rollout_log_probs"]
    loss = LOSSES[args.loss_type]
    return loss(args, batch, inputs.per_sample(log_probs), inputs.per_sample(entropy), reduce)


def optimizer_step(
    args: Namespace,
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
        for name, value in metrics.items():
            sums[name] = sums.get(name, torch.zeros((), device=device)) + value
    result = _mean_over_ranks(sums, denominator)
    norm, rate, taken = apply_gradients(model, optimizer, schedule, args.clip_grad)
    return result | {"grad_norm": norm, "lr-pg_0": rate, "skipped_steps": float(not taken)}


def _mean_over_ranks(sums: dict[str, Tensor], denominator: int) -> Metrics:
    """Sum each metric over ranks and divide; a rank without samples contributes nothing, whatever its names."""
    local = {name: float(value) for name, value in sums.items()}
    gathered: list[Metrics | None] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, local)
    names = sorted({name for metrics in gathered if metrics for name in metrics})
    return {name: sum(metrics.get(name, 0.0) for metrics in gathered if metrics) / denominator for name in names}
