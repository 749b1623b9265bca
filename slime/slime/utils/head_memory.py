"""Memory of logits and of response-token log probabilities; imports no torch.

Peak bytes above the model, its gradients and the hidden states, for ``N`` rows, ``K`` ids per row, hidden size ``H``, a
vocabulary of ``V`` over ``n`` tensor-parallel ranks, and ``b`` bytes per number of the compute dtype (2 for bfloat16):

    logits     b x min(chunk, N) x V / n
    gradients  4 x N x H, and 2 x N x H more in bfloat16
    per row    N x (24 x K + 40)
    slices     2 times 1 MiB on a CPU, 64 MiB on a GPU, or the block in float32 if that is smaller; none with Triton's kernels

A CPU without bfloat16 instructions adds 4 bytes per logit of a block inside its matrix product. The head's own
gradient, ``b x V / n x H``, is the one that the back end accumulates and reduces. Entropies need no extra memory.
:func:`head_bytes` computes the sum.
"""

from __future__ import annotations

# Float32 bytes that elementwise work processes at once: fits a CPU's cache, and needs few launches on a GPU.
CPU_SLICE_BYTES, GPU_SLICE_BYTES = 2**20, 2**26
# Float32 logit bytes per chunk without --log-probs-chunk-size.
DEFAULT_CHUNK_BYTES = 256 * 2**20
# Wider blocks are a multiple of this, which suits matrix products.
_ALIGNED = 64


def chunk_rows(requested: int, vocab_size: int) -> int:
    """Return rows per chunk: ``requested`` if positive, else as many as fit :data:`DEFAULT_CHUNK_BYTES`."""
    return requested if requested > 0 else max(1, DEFAULT_CHUNK_BYTES // (4 * vocab_size))


def block_width(rows: int, columns: int, chunk: int, *, even: bool) -> int:
    """Return the width of blocks of ``rows`` rows with at most ``chunk * columns`` logits; at least 1 column.

    Blocks are as wide as that allows, and the last one has what is left. With ``even`` there are as many, of nearly equal
    width, so that the last one, whose logits the backward pass need not recompute, is no sliver. A CPU keeps the widest
    blocks, because other blocks change the order of its sums.
    """
    width = min(columns, max(1, chunk * columns // max(1, rows)))
    if _ALIGNED < width < columns:
        width -= width % _ALIGNED
    if not even or width == columns:
        return width
    blocks = -(-columns // width)
    narrow, step = -(-columns // blocks), _ALIGNED if width >= _ALIGNED else 1
    return -(-narrow // step) * step


def head_bytes(
    rows: int,
    hidden: int,
    columns: int,
    *,
    chunk: int,
    ids: int = 1,
    dtype_bytes: int = 2,
    on_gpu: bool = True,
    triton: bool = False,
) -> int:
    """Return the table's peak bytes for ``rows`` response tokens and this rank's ``columns`` of the vocabulary.

    ``triton``: the walk uses Triton's kernels.
    """
    block = rows * block_width(rows, columns, chunk, even=on_gpu)
    gradients = rows * hidden * (4 if dtype_bytes == 4 else 6)
    slices = 0 if triton else 2 * min(4 * block, GPU_SLICE_BYTES if on_gpu else CPU_SLICE_BYTES)
    return dtype_bytes * block + gradients + rows * (24 * ids + 40) + slices
