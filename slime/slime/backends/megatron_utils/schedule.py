"""Micro-batches through the pipeline with Megatron's schedules.

Inputs are packed ("thd"): the samples of a micro-batch one after the other, with cumulative lengths. Where sequence
parallelism splits the pack, it is padded to a multiple of the ranks with a sequence of its own that nothing reads.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from slime.backends.megatron_utils.cpu_device import model_device
from slime.backends.trainer.packing import MicroBatch

Finish = Callable[[list[int], Tensor], Any]


def packed_arguments(batch: MicroBatch, multiple: int) -> dict[str, Any]:
    """Return the arguments of Megatron's model for a packed micro-batch whose length becomes a multiple of ``multiple``."""
    from megatron.core.packed_seq_params import PackedSeqParams

    assert batch.position_ids is not None
    ids, positions, lengths = batch.input_ids, batch.position_ids, list(batch.sequence_lengths)
    missing = -ids.size(1) % multiple
    if missing:
        ids = torch.nn.functional.pad(ids, (0, missing))
        positions = torch.cat([positions, torch.arange(missing, device=ids.device).unsqueeze(0)], dim=1)
        lengths.append(missing)
    ends = torch.tensor([0, *lengths], dtype=torch.int32, device=ids.device).cumsum(0, dtype=torch.int32)
    longest = max(lengths)
    packed = PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=longest, max_seqlen_kv=longest
    )
    return {"input_ids": ids, "position_ids": positions, "attention_mask": None, "packed_seq_params": packed}


def run(
    args: Namespace,
    model: Any,
    micro_batches: Sequence[tuple[list[int], MicroBatch]],
    finish: Finish,
    *,
    device: torch.device,
    forward_only: bool,
) -> list[Any]:
    """Run all micro-batches forward, and backward unless ``forward_only``; collective over the ranks of a model copy.

    Args:
        micro_batches: the samples of each, and the model input they make.
        finish: gets the samples and the final hidden states on the last stage. For a backward pass it returns the loss,
            which is divided by the number of micro-batches, and anything; forward only it returns anything.

    Returns:
        On the last stage what ``finish`` returned besides the loss, per micro-batch; nothing elsewhere.
    """
    from megatron.core.pipeline_parallel import get_forward_backward_func

    config = model.config
    multiple = args.tensor_model_parallel_size if config.sequence_parallel else 1

    def forward_step(batches: Any, chunk: Any) -> tuple[Tensor, Callable[..., Any]]:
        indices, batch = next(batches)
        output = chunk(**packed_arguments(batch, multiple))
        return output, lambda hidden, non_loss_data=False: finish(indices, hidden)

    with model_device(device):
        return get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=iter(micro_batches),
            model=[model],
            num_microbatches=len(micro_batches),
            seq_length=1,  # lengths vary and travel with the activations
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )
