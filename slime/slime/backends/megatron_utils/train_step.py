"""Forward passes over a shard, and one optimizer step, through Megatron's schedules.

Guarantees: a step's gradient is that of ``sum over all samples of all ranks / denominator``, for any number of ranks
and micro-batches. Megatron divides by the micro-batches and averages over data-parallel ranks, so the loss is
multiplied by both; over context-parallel ranks it sums. Every rank gets the last pipeline stage's log probabilities and
metrics. Context-parallel ranks all compute a built-in loss from whole responses, but each computes only its part of a
custom loss.

Inputs are packed ("thd"): the samples of a micro-batch in a row, with cumulative lengths. Each context-parallel rank
gets its part of every sample, with the cumulative lengths of whole samples. If sequence parallelism splits the pack, an
extra sequence that nothing reads pads it to a multiple of the ranks. If ranks gather their experts' tokens in equal
parts (the CPU), it pads the pack to the longest rank's.

The head gives log probabilities or logits over a vocabulary split over tensor-parallel ranks. Context-parallel ranks each compute their own rows, and exchange log probabilities, never logits.

Guarantees: the gradient of the hidden states is the sum over the ranks' columns. Rows that pad the vocabulary get no
probability and no gradient. At most one chunk of positions has logits at a time, unless the caller requests logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from slime.args import Arguments
from slime.arguments.placement import padded_length
from slime.backends.megatron_utils.context_parallel import own_part, share_of, whole_responses
from slime.backends.megatron_utils.model import unwrapped
from slime.backends.megatron_utils.parallel import groups, model_device
from slime.backends.megatron_utils.state import apply_gradients
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
    to_cpu,
)
from slime.backends.trainer.schedule import Schedule
from slime.logprobs.context_parallel import held_positions, own_place
from slime.logprobs.response_rows import Kernel, ResponseRows, kernel_on
from slime.utils.metric_names import HELD
from slime.utils.vocab_parallel import tensor_parallel_group

Finish = Callable[[list[int], Tensor], Any]
Around = Callable[[int, list[int], MicroBatch, int], AbstractContextManager[None]]
"""Context of a micro-batch's forward pass, from its number, samples, input, and this rank's padded token count."""


def held_length(batch: MicroBatch, multiple: int) -> int:
    """Return this rank's tokens of ``batch``, padded to a multiple of ``multiple``."""
    _, ranks = own_place()
    held = sum(padded_length(length, ranks) for length in batch.sequence_lengths) // ranks
    return held + -held % (multiple if ranks == 1 else math.lcm(2, multiple))


def packed_arguments(batch: MicroBatch, length: int) -> dict[str, Any]:
    """Return the arguments of Megatron's model for this rank's part of a packed micro-batch, ``length`` tokens with padding."""
    from megatron.core.packed_seq_params import PackedSeqParams

    rank, ranks = own_place()
    share = share_of(batch, rank, ranks)
    ids, positions, lengths = share.input_ids, share.position_ids, share.padded_lengths
    missing = length - ids.size(1)
    if missing:
        lengths = [*lengths, missing * ranks]
        ids = torch.nn.functional.pad(ids, (0, missing))
        padding = held_positions(missing * ranks, rank, ranks).to(ids.device)
        positions = torch.cat([positions, padding.unsqueeze(0)], dim=1)
    ends = torch.tensor([0, *lengths], dtype=torch.int32, device=ids.device).cumsum(0, dtype=torch.int32)
    longest = max(lengths)
    packed = PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=longest, max_seqlen_kv=longest
    )
    return {"input_ids": ids, "position_ids": positions, "attention_mask": None, "packed_seq_params": packed}


def longest_of_experts(lengths: list[int], device: torch.device) -> list[int]:
    """Return, per micro-batch, the longest length over ranks that share experts; collective."""
    longest = torch.tensor(lengths, device=device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=groups().get_expert_tensor_and_model_parallel_group())
    return longest.tolist()


def run(
    args: Arguments,
    model: Any,
    micro_batches: Sequence[tuple[list[int], MicroBatch]],
    finish: Finish,
    *,
    device: torch.device,
    forward_only: bool,
    around: Around | None = None,
) -> list[Any]:
    """Run all micro-batches forward, and backward unless ``forward_only``; collective over the ranks of a model copy.

    Args:
        micro_batches: the samples of each, and their model input.
        finish: called on the last stage with samples and final hidden states. For a backward pass it returns the loss,
            which is divided by the number of micro-batches, and anything; forward only it returns anything.
        around: context manager for each forward pass.

    Returns:
        On the last stage, ``finish``'s result other than the loss per micro-batch; empty elsewhere.
    """
    from megatron.core.pipeline_parallel import get_forward_backward_func

    multiple = args.tensor_model_parallel_size if model.config.sequence_parallel else 1
    lengths = [held_length(batch, multiple) for _, batch in micro_batches]
    if model.config.num_moe_experts and model.config.moe_token_dispatcher_type == "allgather":
        lengths = longest_of_experts(lengths, device)

    def forward_step(batches: Any, chunk: Any) -> tuple[Tensor, Callable[..., Any]]:
        number, ((indices, batch), length) = next(batches)
        with around(number, indices, batch, length) if around else nullcontext():
            output = chunk(**packed_arguments(batch, length))
        return output, lambda hidden, non_loss_data=False: finish(indices, hidden)

    with model_device(device):
        return get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=enumerate(zip(micro_batches, lengths, strict=True)),
            model=[model],
            num_microbatches=len(micro_batches),
            seq_length=1,  # lengths vary and are sent with the activations
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )


# Logit of a padding row: its probability is exactly 0 in float32.
_NEVER = -1e9


class Head:
    """The LM head of one forward pass of the last pipeline stage; called like every back end's model."""

    def __init__(self, args: Arguments, model: Any, hidden: Tensor, vocab_size: int) -> None:
        """``hidden`` ``[T, 1, H]`` is the unwrapped ``model``'s output; with sequence parallelism, this rank's part."""
        from megatron.core import tensor_parallel

        shared = model.share_embeddings_and_output_weights
        self._weight: Tensor = model.shared_embedding_or_output_weight() if shared else model.output_layer.weight
        self._group = tensor_parallel_group()
        self._vocab_size = vocab_size
        self._kernel: Kernel = kernel_on(hidden.device, args.logprob_kernel)
        if model.config.sequence_parallel:
            hidden = tensor_parallel.gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=True)
        else:
            hidden = tensor_parallel.copy_to_tensor_model_parallel_region(hidden)
        self._hidden = hidden.squeeze(1)

    def _logits(self, rows: Tensor) -> Tensor:
        """Return this rank's logits ``[n, V/size]`` of ``rows`` ``[n, H]``."""
        logits = torch.nn.functional.linear(rows.to(self._weight.dtype), self._weight)
        width = self._weight.size(0)
        first = self._group.rank() * width if self._group is not None else 0
        unused = min(width, max(0, first + width - self._vocab_size))
        if unused:
            nothing = logits.new_full((len(rows), unused), _NEVER)
            logits = torch.cat([logits[:, : width - unused], nothing], dim=1)
        return logits

    def __call__(
        self,
        batch: MicroBatch,
        *,
        temperature: float,
        chunk_size: int,
        want_logits: bool = False,
        of_rows: Callable[[ResponseRows], Any] | None = None,
    ) -> Any:
        """Return log probabilities and entropies ``[N]`` of response rows, float32 logits, or ``of_rows``' result.

        The logits ``[1, T, V/size]`` cover this rank's tokens and columns, sample after sample, without the
        temperature. With context parallelism a sample has two padded pieces. ``of_rows`` gets this rank's rows.
        """
        share = share_of(batch, *own_place())
        if want_logits:
            return self._logits(self._hidden[: share.input_ids.size(1)]).float().unsqueeze(0)
        pairs = [(self._hidden[share.rows], self._weight)]
        rows = ResponseRows(pairs, chunk_size, self._group, self._vocab_size, self._kernel)
        if of_rows:
            return of_rows(rows)
        targets = batch.targets[share.owned]
        values = rows.log_probs(targets, temperature=temperature, id_range=batch.target_range)
        log_probs, entropy = (whole_responses(value, share.owned, len(batch.targets)) for value in values)
        return log_probs, entropy


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
        return dict(zip(indices, values, strict=True))

    result = run(args, model, inputs, finish, device=device, forward_only=True, around=around)
    model.train(training)
    merged = from_last_stage(to_cpu({index: values for part in result for index, values in part.items()}))
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
        head = Head(args, unwrapped(model), hidden, vocab_size)
        return head(batch, temperature=args.rollout_temperature, chunk_size=args.log_probs_chunk_size)[0]

    return per_sample_pass(args, model, shard, device, log_probs, around=around)


def most_likely_pass(
    args: Arguments, model: Any, shard: RolloutShard, device: torch.device, vocab_size: int
) -> list[int]:
    """Return the most likely token at the place of each sample's last one; responses have one token."""

    def most_likely(hidden: Tensor, batch: MicroBatch) -> Tensor:
        head = Head(args, unwrapped(model), hidden, vocab_size)
        result = head(batch, temperature=1.0, chunk_size=args.log_probs_chunk_size, of_rows=ResponseRows.most_likely)
        return whole_responses(result, share_of(batch, *own_place()).owned, len(batch.targets))

    return [int(token) for token in per_sample_pass(args, model, shard, device, most_likely)]


def policy_loss_of(
    args: Arguments, model: Any, shard: RolloutShard, device: torch.device, vocab_size: int
) -> LossOfHidden:
    """Return the function for the loss of ``--loss-type``; a custom loss gets only this rank's part of the logits."""

    def loss_of(indices: list[int], hidden: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        head: Any = Head(args, unwrapped(model), hidden, vocab_size)
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
    result = run(args, model, inputs, finish, device=device, forward_only=False, around=around)
    sums: dict[str, Tensor] = {}
    for metrics in result:
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
