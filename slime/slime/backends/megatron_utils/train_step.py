"""Forward passes over a shard, and one optimizer step, through Megatron's schedules.

Guarantees: a step's gradient is that of ``sum over all samples of all ranks / denominator``, for any number of ranks
and micro-batches. Megatron divides by the micro-batches and averages over data-parallel ranks, so the loss is
multiplied by both; over context-parallel ranks it sums. Every rank gets the last pipeline stage's log probabilities and
metrics. Context-parallel ranks all compute a built-in loss from whole responses, but each computes only its part of a
custom loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from slime.args import Arguments
from slime.backends.megatron_utils.context_parallel import own_part, share_of, whole_responses
from slime.backends.megatron_utils.head import Head
from slime.backends.megatron_utils.model import unwrapped
from slime.backends.megatron_utils.optimizer import apply_gradients
from slime.backends.megatron_utils.parallel import groups
from slime.backends.megatron_utils.schedule import Around, run
from slime.backends.trainer.micro_batch import (
    IMAGES,
    Metrics,
    MicroBatch,
    RolloutShard,
    add_metrics,
    held_back,
    mean_over_ranks,
    micro_batch_loss,
    model_input,
)
from slime.backends.trainer.schedule import Schedule
from slime.logprobs.context_parallel import own_place
from slime.logprobs.response_rows import ResponseRows
from slime.utils.metric_names import HELD

LossOfHidden = Callable[[list[int], Tensor], tuple[Tensor, dict[str, Tensor]]]
"""Function from samples and their last-stage hidden states to their summed loss and metrics."""


def from_last_stage(value: Any) -> Any:
    """Return the last pipeline stage's ``value`` on every stage."""
    if groups().get_pipeline_model_parallel_world_size() == 1:
        return value
    box = [value]
    source = groups().get_pipeline_model_parallel_last_rank()
    dist.broadcast_object_list(box, src=source, group=groups().get_pipeline_model_parallel_group())
    return box[0]


def _inputs(
    args: Arguments, shard: RolloutShard, batches: list[list[int]], device: torch.device
) -> list[tuple[list[int], MicroBatch]]:
    if IMAGES in shard.fields:
        raise ValueError(
            "samples have images, which --train-backend megatron cannot train on; use --train-backend fsdp"
        )
    return [(indices, model_input(args, shard, indices, device)) for indices in batches]


@torch.no_grad()
def per_sample_pass(
    args: Arguments,
    model: Any,
    shard: RolloutShard,
    device: torch.device,
    of_hidden: Callable[[Tensor, MicroBatch], Tensor],
    *,
    around: Around | None = None,
) -> list[Tensor]:
    """Return ``of_hidden``'s value per response row as ``[R_i]`` per sample of the shard, on the CPU.

    ``of_hidden`` gets the last stage's hidden states of the micro-batch.
    """
    training = model.training
    model.eval()
    inputs = _inputs(args, shard, [indices for step in shard.micro_batches for indices in step], device)
    batches = iter([batch for _, batch in inputs])

    def finish(indices: list[int], hidden: Tensor) -> dict[int, Tensor]:
        batch = next(batches)
        values = batch.per_sample(of_hidden(hidden, batch))
        return {index: value.cpu() for index, value in zip(indices, values, strict=True)}

    found = run(args, model, inputs, finish, device=device, forward_only=True, around=around)
    model.train(training)
    merged = from_last_stage({index: values for part in found for index, values in part.items()})
    return [merged[index] for index in range(shard.num_samples)]


def log_prob_pass(
    args: Arguments,
    model: Any,
    shard: RolloutShard,
    device: torch.device,
    vocab_size: int,
    *,
    around: Around | None = None,
) -> list[Tensor]:
    """Return ``[R_i]`` log probabilities of every sample of the shard under ``model``, on the CPU."""

    def log_probs(hidden: Tensor, batch: MicroBatch) -> Tensor:
        head = Head(unwrapped(model), hidden, vocab_size)
        return head(batch, temperature=args.rollout_temperature, chunk_size=args.log_probs_chunk_size)[0]

    return per_sample_pass(args, model, shard, device, log_probs, around=around)


def most_likely_pass(
    args: Arguments, model: Any, shard: RolloutShard, device: torch.device, vocab_size: int
) -> list[int]:
    """Return the most likely token at the place of each sample's last one; responses have one token."""

    def most_likely(hidden: Tensor, batch: MicroBatch) -> Tensor:
        head = Head(unwrapped(model), hidden, vocab_size)
        found = head(batch, temperature=1.0, chunk_size=args.log_probs_chunk_size, of_rows=ResponseRows.most_likely)
        return whole_responses(found, share_of(batch, *own_place()).owned, len(batch.targets))

    return [int(token) for token in per_sample_pass(args, model, shard, device, most_likely)]


def policy_loss_of(
    args: Arguments, model: Any, shard: RolloutShard, device: torch.device, vocab_size: int
) -> LossOfHidden:
    """Return the function for the loss of ``--loss-type``; a custom loss gets only this rank's part of the logits."""

    def loss_of(indices: list[int], hidden: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        head: Any = Head(unwrapped(model), hidden, vocab_size)
        return micro_batch_loss(
            args, head, shard, indices, device, part_of_logits=lambda batch: own_part(batch, *own_place())
        )

    return loss_of


def backward_pass(
    args: Arguments,
    model: Any,
    shard: RolloutShard,
    step: int,
    device: torch.device,
    loss_of: LossOfHidden,
    *,
    in_parts: bool = False,
    around: Around | None = None,
) -> Metrics:
    """Fill the gradients of optimizer step ``step`` and return the metrics of its loss, equal on all ranks.

    ``in_parts``: ``loss_of`` returns only the part of a context-parallel rank.
    """
    counts = shard.global_token_counts if args.calculate_per_token_loss else shard.global_batch_sizes
    denominator = max(1, counts[step])
    batches = shard.micro_batches[step]
    scale = len(batches) * groups().get_data_parallel_world_size() / denominator

    def finish(indices: list[int], hidden: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = loss_of(indices, hidden)
        return loss * scale, metrics

    inputs = _inputs(args, shard, batches, device)
    found = run(args, model, inputs, finish, device=device, forward_only=False, around=around)
    sums: dict[str, Tensor] = {}
    for metrics in found:
        add_metrics(sums, metrics, device)
    ranks = groups().get_data_parallel_group(with_context_parallel=in_parts)
    return from_last_stage(mean_over_ranks(sums, denominator, ranks))


def optimizer_step(
    args: Arguments,
    model: Any,
    optimizer: Any,
    schedule: Schedule,
    shard: RolloutShard,
    step: int,
    device: torch.device,
    loss_of: LossOfHidden,
    *,
    in_parts: bool = False,
    around: Around | None = None,
) -> Metrics:
    """Take optimizer step ``step`` of the shard and return its metrics, equal on all ranks; see :func:`backward_pass`."""
    result = backward_pass(args, model, shard, step, device, loss_of, in_parts=in_parts, around=around)
    result |= held_back(args, result)
    hold = bool(result.get(HELD))
    norm, rate, taken = apply_gradients(model, optimizer, schedule, args.clip_grad, device=device, hold=hold)
    return result | {"grad_norm": norm, "lr-pg_0": rate, "skipped_steps": float(not taken)}
