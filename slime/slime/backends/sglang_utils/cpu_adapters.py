"""Hooks around SGLang's products of adapters on a CPU: the same products, with Python numbers where SGLang has tensors of one number.

SGLang 0.5.23 multiplies once per adapter, layer and matrix. Around each of these small products it makes tensor operations out of
every offset, rank and scale, which cost twenty times as much as the product (log/many_people.md#adapters-products). Guarantees: each
element is computed by the same call on the same memory, so results are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from slime.backends.sglang_utils.server_hooks import hook

OPERATIONS = "sglang.srt.lora.torch_ops"


def parts(adapters: Tensor, lengths: Tensor, ranks: Tensor) -> Iterator[tuple[int, int, int, int]]:
    """Yield start and end of each run of rows with one adapter, its place and its rank; without those that add nothing.

    Args:
        adapters: place of each run's adapter, integers of shape ``[runs]``.
        lengths: rows of each run, the same shape.
        ranks: of the adapters by place.
    """
    numbers, start = ranks.tolist(), 0
    for adapter, length in zip(adapters.tolist(), lengths.tolist(), strict=False):
        end = start + length
        if length and numbers[adapter]:
            yield start, end, adapter, numbers[adapter]
        start = end


def into_rank(
    original: Callable[..., Tensor],
    inputs: Tensor,
    weights: Tensor,
    weight_indices: Tensor,
    seg_len_tensor: Tensor,
    lora_ranks: Tensor,
    scaling_tensor: Tensor,
    num_slices: int = 1,
) -> Tensor:
    """Return the scaled products with A, ``[rows, slices * rank]``; the arguments are SGLang's."""
    if not weights.numel():
        return torch.zeros(len(inputs), 0, dtype=inputs.dtype, device=inputs.device)
    width = num_slices * (weights.shape[1] // num_slices)
    output = torch.zeros(len(inputs), width, dtype=inputs.dtype, device=inputs.device)
    scales = scaling_tensor.tolist()
    for start, end, adapter, rank in parts(weight_indices, seg_len_tensor, lora_ranks):
        rows = num_slices * rank
        output[start:end, :rows].addmm_(inputs[start:end], weights[adapter, :rows].T, beta=0, alpha=scales[adapter])
    return output


def out_of_rank(
    original: Callable[..., Tensor],
    inputs: Tensor,
    weights: Tensor,
    weight_indices: Tensor,
    seg_len_tensor: Tensor,
    lora_ranks: Tensor,
    slice_offsets: Tensor,
    base_output: Tensor | None = None,
) -> Tensor:
    """Return the base's output with the products with B added in place, ``[rows, outputs]``; the arguments are SGLang's."""
    offsets = slice_offsets.tolist()
    width = offsets[-1] if offsets else 0
    if base_output is None or not weights.numel():
        output = torch.zeros(len(inputs), width, dtype=inputs.dtype, device=inputs.device)
        if not weights.numel():
            return output
    else:
        output = base_output
    for start, end, adapter, rank in parts(weight_indices, seg_len_tensor, lora_ranks):
        for number, (first, last) in enumerate(pairwise(offsets)):
            part = inputs[start:end, number * rank : (number + 1) * rank]
            output[start:end, first:last].addmm_(part, weights[adapter, first:last, :rank].T)
    return output


def multiply_with_numbers() -> None:
    """Hook SGLang's products; call it before the workers start, and in each worker that is no fork.

    Raises:
        RuntimeError: see :func:`~slime.backends.sglang_utils.server_hooks.hook`.
    """
    hooks: dict[str, Any] = {
        f"{OPERATIONS}.sgemm_lora_a_control_fwd": into_rank,
        f"{OPERATIONS}.sgemm_lora_b_control_fwd": out_of_rank,
    }
    hook(hooks, "multiply with adapters on a CPU")
