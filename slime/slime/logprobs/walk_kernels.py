"""Triton kernels of the walk over the vocabulary: one launch per block of logits and pass.

Both read a block ``[N, width]`` of logits in the head's dtype and compute in float32, with the formulas of
:mod:`slime.logprobs.response_rows`. :func:`add_block` leaves the block unchanged, so its logits can be kept for the
backward pass. :func:`to_gradient` overwrites it, and rounds each entry once. No table of the block's size exists beside it.

A program has one row, and loads :data:`_COLUMNS` of its columns and :data:`_IDS` of its ids at a time. A token may
be there several times among a row's ids; their gradients add up. A logit of minus infinity has probability zero, and takes
no part in entropies and gradients.
"""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

_COLUMNS, _IDS, _WARPS = 4096, 32, 8


# The block's first token id takes many values, and none of them deserves a compilation of its own.
@triton.jit(do_not_specialize=["first"])
def _add_block(
    table_ptr,
    stride,
    ids_ptr,
    largest_ptr,
    total_ptr,
    weighted_ptr,
    chosen_ptr,
    first,
    width,
    count,
    temperature,
    ENTROPY: tl.constexpr,
    COLUMNS: tl.constexpr,
    IDS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    base = table_ptr + row * stride
    largest = tl.load(largest_ptr + row)
    total = tl.load(total_ptr + row)
    weighted = tl.load(weighted_ptr + row)
    for start in range(0, width, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        inside = columns < width
        z = tl.load(base + columns, mask=inside, other=-float("inf")).to(tl.float32) / temperature
        peak = tl.maximum(largest, tl.max(z, 0))
        shift = largest - peak
        below = z - peak
        exponentials = tl.exp(below)
        if ENTROPY:
            products = tl.where(exponentials > 0.0, exponentials * below, 0.0)
            weighted = (weighted + total * shift) * tl.exp(shift) + tl.sum(products, 0)
        total = total * tl.exp(shift) + tl.sum(exponentials, 0)
        largest = peak
    tl.store(largest_ptr + row, largest)
    tl.store(total_ptr + row, total)
    if ENTROPY:
        tl.store(weighted_ptr + row, weighted)
    for start in range(0, count, IDS):
        places = start + tl.arange(0, IDS)
        columns = tl.load(ids_ptr + row * count + places, mask=places < count, other=-1) - first
        here = (places < count) & (columns >= 0) & (columns < width)
        z = tl.load(base + columns, mask=here, other=0.0).to(tl.float32) / temperature
        tl.store(chosen_ptr + row * count + places, z, mask=here)


@triton.jit(do_not_specialize=["first"])
def _to_gradient(
    table_ptr,
    stride,
    ids_ptr,
    chosen_ptr,
    of_ids_ptr,
    largest_ptr,
    total_ptr,
    share_ptr,
    entropy_ptr,
    of_entropy_ptr,
    first,
    width,
    count,
    temperature,
    ENTROPY: tl.constexpr,
    COLUMNS: tl.constexpr,
    IDS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    base = table_ptr + row * stride
    largest = tl.load(largest_ptr + row)
    total = tl.load(total_ptr + row)
    share = tl.load(share_ptr + row)
    offset = tl.load(entropy_ptr + row) - tl.log(total)
    of_entropy = tl.load(of_entropy_ptr + row)
    for start in range(0, width, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        inside = columns < width
        below = tl.load(base + columns, mask=inside, other=0.0).to(tl.float32) / temperature - largest
        p = tl.exp(below) / total
        gradient = -share * p
        if ENTROPY:
            gradient -= of_entropy * tl.where(p > 0.0, p * (below + offset), 0.0)
        tl.store(base + columns, gradient.to(table_ptr.dtype.element_ty), mask=inside)
    # A thread below writes where another one above has written.
    tl.debug_barrier()
    for start in range(0, count, IDS):
        places = start + tl.arange(0, IDS)
        ids = tl.load(ids_ptr + row * count + places, mask=places < count, other=-1)
        columns = ids - first
        here = (places < count) & (columns >= 0) & (columns < width)
        below = tl.load(chosen_ptr + row * count + places, mask=here, other=0.0) - largest
        p = tl.exp(below) / total
        gradient = -share * p
        if ENTROPY:
            gradient -= of_entropy * tl.where(p > 0.0, p * (below + offset), 0.0)
        for other in range(0, count, IDS):
            others = other + tl.arange(0, IDS)
            same = tl.load(ids_ptr + row * count + others, mask=others < count, other=-1)[None, :] == ids[:, None]
            of_ids = tl.load(of_ids_ptr + row * count + others, mask=others < count, other=0.0)
            gradient += tl.sum(tl.where(same, of_ids[None, :], 0.0), 1)
        tl.store(base + columns, gradient.to(table_ptr.dtype.element_ty), mask=here)


def _sizes(table: Tensor, ids: Tensor) -> dict[str, int]:
    columns, places = (triton.next_power_of_2(size) for size in (table.size(1), ids.size(1)))
    return {"COLUMNS": min(_COLUMNS, columns), "IDS": min(_IDS, places), "num_warps": _WARPS}


def add_block(
    table: Tensor,
    ids: Tensor,
    sums: tuple[Tensor, Tensor, Tensor],
    chosen: Tensor,
    *,
    first: int,
    temperature: float,
    with_entropy: bool,
) -> None:
    """Add a block of logits to the running sums of its rows, in place.

    Args:
        table: ``[N, width]`` logits, unchanged.
        ids: ``[N, K]`` token ids, contiguous.
        sums: ``m``, ``s`` and the entropy's sum of the blocks so far, ``[N]`` float32.
        chosen: ``[N, K]`` float32, contiguous; the ids of this block get their logit over the temperature.
        first: token id of column 0.
        temperature: divisor of the logits.
        with_entropy: whether to update the entropy's sum.
    """
    if not table.numel():
        return
    with torch.cuda.device_of(table):
        _add_block[(len(table),)](  # pyright: ignore[reportIndexIssue]
            *(table, table.stride(0), ids, *sums, chosen),
            *(first, table.size(1), ids.size(1), float(temperature)),
            ENTROPY=with_entropy,
            **_sizes(table, ids),
        )


def to_gradient(
    table: Tensor,
    ids: Tensor,
    chosen: Tensor,
    rows: tuple[Tensor, Tensor],
    of_ids: Tensor,
    entropy: Tensor,
    of_entropy: Tensor | None,
    *,
    first: int,
    temperature: float,
) -> None:
    """Replace a block of logits by their gradient, in place.

    Args:
        table: ``[N, width]`` logits.
        ids: ``[N, K]`` token ids, contiguous.
        chosen: ``[N, K]`` their logits over the temperature, from :func:`add_block`.
        rows: ``m`` and ``s`` over the whole vocabulary, ``[N]``.
        of_ids: ``[N, K]`` gradients of the log probabilities over the temperature.
        entropy: ``[N]`` entropies.
        of_entropy: ``[N]`` their gradients over the temperature, or None.
        first: token id of column 0.
        temperature: divisor of the logits.
    """
    if not table.numel():
        return
    of_ids, share = of_ids.contiguous(), of_ids.sum(-1)
    with torch.cuda.device_of(table):
        _to_gradient[(len(table),)](  # pyright: ignore[reportIndexIssue]
            *(table, table.stride(0), ids, chosen, of_ids, *rows, share),
            *(entropy, share if of_entropy is None else of_entropy.contiguous()),
            *(first, table.size(1), ids.size(1), float(temperature)),
            ENTROPY=of_entropy is not None,
            **_sizes(table, ids),
        )
