"""Forward passes over a shard, and one optimizer step.

Guarantees: a step's gradient is that of ``sum over all samples of all ranks / denominator``, for any number of ranks
and micro-batches. FSDP averages over ranks, so a rank's loss is multiplied by their number. Every rank runs the same
number of forward and backward passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from slime.args import Arguments
from slime.backends.fsdp_utils.model import PolicyModel
from slime.backends.fsdp_utils.optimizer import apply_gradients
from slime.backends.trainer.hold import held_back
from slime.backends.trainer.micro_batch import Metrics, add_metrics, mean_over_ranks, micro_batch_loss, model_input
from slime.backends.trainer.packing import MicroBatch
from slime.backends.trainer.rollout_data import RolloutShard
from slime.backends.trainer.schedule import Schedule
from slime.utils.metric_names import HELD

LossOfMicroBatch = Callable[[Arguments, Any, RolloutShard, list[int], torch.device], tuple[Tensor, dict[str, Tensor]]]


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
    results: list[Tensor] = [torch.empty(0)] * shard.num_samples
    for step in shard.micro_batches:
        for indices in step:
            inputs = model_input(args, shard, indices, device)
            for index, values in zip(indices, inputs.per_sample(forward(inputs)), strict=True):
                results[index] = values.cpu()
    model.train(training)
    return results


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
