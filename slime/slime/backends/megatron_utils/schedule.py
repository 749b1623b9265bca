"""Micro-batches through the pipeline with Megatron's schedules.

Inputs are packed ("thd"): the samples of a micro-batch in a row, with cumulative lengths. Each context-parallel rank
gets its part of every sample, with the cumulative lengths of whole samples. If sequence parallelism splits the pack, an
extra sequence that nothing reads pads it to a multiple of the ranks. If ranks gather their experts' tokens in equal
parts (the CPU), it pads the pack to the longest rank's.
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
from slime.backends.megatron_utils.context_parallel import share_of
from slime.backends.megatron_utils.cpu_device import model_device
from slime.backends.megatron_utils.parallel import groups
from slime.backends.trainer.micro_batch import MicroBatch
from slime.logprobs.context_parallel import held_positions, own_place

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
