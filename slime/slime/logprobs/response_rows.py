"""Compute response log probabilities from hidden states, without a whole sequence's logits.

``z = logits / temperature``, ``m = max_v z_v``, ``s = sum_v exp(z_v - m)``: ``log p(t) = z_t - m - log s`` and ``H = log s -
sum_v exp(z_v - m) (z_v - m) / s``. With ``p = exp(z - m) / s`` the gradients to the logits are ``d log p(t) / d logits_v =
([v = t] - p_v) / temperature`` and ``dH / d logits_v = -p_v (log p_v + H) / temperature``. The forward pass walks over blocks
of vocabulary columns and updates ``m``, ``s`` and the entropy's sum from block to block (Milakov and Gimelshein, "Online
normalizer calculation for softmax", 2018).

Guarantees:

* Old, new, reference and distillation log probabilities take the same path: LM head in the model's dtype, then float32,
  divided by the temperature.
* In either pass, no more logits exist at a time than ``chunk`` rows of this rank's vocabulary have: those of one block,
  ``[N, width]``. The backward pass recomputes each block's logits, except for the last block, whose gradient it computes
  first.
* A block holds all rows of some columns. The gradient of a row of the head is therefore one matrix product over all ``N``
  positions, rounded once. Its error does not depend on the number of blocks, even if the head computes in bfloat16.
* The gradient of the hidden states is a sum over blocks, accumulated in float32. A GPU adds a product to it unrounded; a
  CPU has no such product for bfloat16 and rounds each block's product once.

The elementwise part of a block has two kernels with the same results up to float32's rounding (:data:`Kernel`): Triton's,
one launch per pass (:mod:`slime.logprobs.walk_kernels`), and torch's, slice by slice.

Rows are in the order of the samples. A context-parallel rank has the rows it holds. :mod:`slime.utils.head_memory`
computes the memory.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from slime.exceptions import ConfigurationError
from slime.utils.head_memory import CPU_SLICE_BYTES, GPU_SLICE_BYTES, block_width, chunk_rows
from slime.utils.vocab_parallel import is_split

# Below every logit, but finite, so that the difference of two such values is finite too.
_LOWEST = -1e30

HeadPairs = Sequence[tuple[Tensor, Tensor]]
"""Inputs ``[N, H_i]`` and weights ``[V/n, H_i]`` with logits ``sum_i x_i W_i^T``: an LM head, its bias, its adapter."""

Kernel = Literal["triton", "torch"]
"""What computes the elementwise part of a block."""


def kernel_on(device: torch.device, choice: Kernel | None = None) -> Kernel:
    """Return the walk's kernel on ``device``: ``choice``, else triton on CUDA and torch on a CPU.

    Raises:
        ConfigurationError: Triton was chosen for a CPU, or is not installed.
    """
    kernel = choice or ("triton" if device.type == "cuda" else "torch")
    if kernel == "triton" and device.type != "cuda":
        raise ConfigurationError("--logprob-kernel triton needs a GPU; use torch")
    if kernel == "triton" and importlib.util.find_spec("triton") is None:
        raise ConfigurationError(
            "--logprob-kernel triton, the default on a GPU, needs the package triton of requirements/gpu.txt; "
            "install it, or use --logprob-kernel torch"
        )
    return kernel


@dataclass(frozen=True)
class Walk:
    """Settings of a walk over the vocabulary.

    Attributes:
        temperature: divisor of the logits.
        width: columns per block.
        first: token id of column 0; above 0 on a rank that holds a later slice of the vocabulary.
        columns: number of this rank's columns that belong to a token; the rest get no probability and no gradient.
        with_entropy: whether to compute entropies; if False they are zero.
        group: the ranks that share the vocabulary, or None.
        kernel: what computes the elementwise part.
    """

    temperature: float
    width: int
    first: int
    columns: int
    with_entropy: bool
    group: Any
    kernel: Kernel

    @classmethod
    def of_head(
        cls,
        pairs: HeadPairs,
        rows: int,
        temperature: float,
        chunk: int,
        with_entropy: bool,
        group: Any,
        vocab_size: int | None,
        kernel: Kernel | None,
    ) -> Walk:
        """Return the walk of ``rows`` rows over the head of ``pairs``; see :func:`log_probs_of_head`."""
        device, width = pairs[0][1].device, pairs[0][1].size(0)
        first, whole = (group.rank() * width, group.size() * width) if is_split(group) else (0, width)
        columns = min(width, max(0, (whole if vocab_size is None else min(vocab_size, whole)) - first))
        block = block_width(rows, columns, chunk, even=device.type != "cpu")
        return cls(temperature, block, first, columns, with_entropy, group, kernel or kernel_on(device))

    def blocks(self) -> list[slice]:
        """Return the blocks of columns, in order."""
        return [
            slice(start, min(start + self.width, self.columns)) for start in range(0, self.columns, max(1, self.width))
        ]

    def scaled(self, logits: Tensor) -> Tensor:
        """Return ``logits`` in float32, divided by the temperature; float32 logits are overwritten."""
        table = logits.float()
        return table if self.temperature == 1.0 else table.div_(self.temperature)

    def places(self, ids: Tensor, block: slice) -> tuple[Tensor, Tensor]:
        """Return the column of each id in ``block`` (0 for an id outside it), and whether the id is inside."""
        local = ids - (self.first + block.start)
        here = (local >= 0) & (local < block.stop - block.start)
        return local.masked_fill_(~here, 0), here


def logits_of(inputs: Sequence[Tensor], weights: Sequence[Tensor], block: slice) -> Tensor:
    """Return ``sum_i x_i W_i[block]^T``."""
    logits = inputs[0] @ weights[0][block].T
    for rows, weight in zip(inputs[1:], weights[1:], strict=True):
        logits.addmm_(rows, weight[block].T)
    return logits


def _slices(table: Tensor) -> Iterator[slice]:
    limit = CPU_SLICE_BYTES if table.device.type == "cpu" else GPU_SLICE_BYTES
    rows = max(1, limit // (4 * max(1, table.size(-1))))
    return (slice(start, start + rows) for start in range(0, len(table), rows))


@dataclass
class _Rows:
    """Running sums of each row over the blocks so far.

    Attributes:
        largest: ``[N]`` the maximum ``m`` of ``z``.
        total: ``[N]`` the sum of ``exp(z - m)``.
        weighted: ``[N]`` the sum of ``exp(z - m) (z - m)``; zero without entropies.
        chosen: ``[N, K]`` the ``z`` of the ids; zero for ids in other blocks.
    """

    largest: Tensor
    total: Tensor
    weighted: Tensor
    chosen: Tensor

    def add_block(self, walk: Walk, block: slice, logits: Tensor, ids: Tensor) -> None:
        """Add a block of logits; torch's kernel overwrites float32 logits with ``exp(z - m)``."""
        if walk.kernel == "triton":
            from slime.logprobs import walk_kernels

            walk_kernels.add_block(
                *(logits, ids, (self.largest, self.total, self.weighted), self.chosen),
                **{"first": walk.first + block.start, "temperature": walk.temperature},
                with_entropy=walk.with_entropy,
            )
            return
        for part in _slices(logits):
            columns, here = walk.places(ids[part], block)
            self._add(part, walk.scaled(logits[part]), columns, here, with_entropy=walk.with_entropy)

    def _add(self, part: slice, z: Tensor, columns: Tensor, here: Tensor, *, with_entropy: bool) -> None:
        """Add the rows ``part`` of a block, and overwrite ``z`` with ``exp(z - m)``."""
        self.chosen[part] += z.gather(-1, columns).masked_fill_(~here, 0.0)
        peak = torch.maximum(self.largest[part], z.amax(-1))
        shift = self.largest[part] - peak
        z.sub_(peak.unsqueeze(-1))
        if with_entropy:
            exponentials = z.exp()
            before = (self.weighted[part] + self.total[part] * shift) * shift.exp()
            self.weighted[part] = before + z.mul_(exponentials).sum(-1)
            z.copy_(exponentials)
        else:
            z.exp_()
        self.total[part] = self.total[part] * shift.exp() + z.sum(-1)
        self.largest[part] = peak

    def over_ranks(self, group: Any) -> _Rows:
        """Return the sums over the whole vocabulary; collective."""
        largest = self.largest.clone()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        shift = self.largest - largest
        own = torch.stack([self.total, self.weighted + self.total * shift], -1) * shift.exp().unsqueeze(-1)
        sums = torch.cat([own, self.chosen], -1)
        dist.all_reduce(sums, group=group)
        return _Rows(largest, sums[:, 0].contiguous(), sums[:, 1].contiguous(), sums[:, 2:].contiguous())


class HeadWalk(torch.autograd.Function):
    """``(ids [N, K], walk, x_1, W_1, x_2, W_2, ...) -> log probabilities [N, K], entropies [N]``, logits ``sum_i x_i W_i^T``."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, walk: Walk, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        inputs, weights = tensors[::2], tensors[1::2]
        lowest = torch.full((len(ids),), _LOWEST, dtype=torch.float32, device=ids.device)
        total, weighted, chosen = (lowest.new_zeros(shape) for shape in (len(ids), len(ids), ids.shape))
        rows = _Rows(lowest, total, weighted, chosen)
        ctx.kept = None
        blocks = walk.blocks()
        for block in blocks:
            logits = logits_of(inputs, weights, block)
            if block is blocks[-1] and any(ctx.needs_input_grad):
                ctx.kept = logits
            rows.add_block(walk, block, logits, ids)
            del logits
        ctx.kept_largest = rows.largest
        if is_split(walk.group):
            rows = rows.over_ranks(walk.group)
        log_total = rows.total.log()
        entropy = log_total - rows.weighted / rows.total if walk.with_entropy else torch.zeros_like(log_total)
        ctx.walk = walk
        ctx.save_for_backward(
            ids, rows.chosen if walk.kernel == "triton" else None, rows.largest, rows.total, entropy, *tensors
        )
        ctx.set_materialize_grads(False)
        if not walk.with_entropy:
            ctx.mark_non_differentiable(entropy)
        return (rows.chosen - rows.largest.unsqueeze(-1)).sub_(log_total.unsqueeze(-1)), entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ids, chosen, largest, total, entropy, *tensors = ctx.saved_tensors
        walk: Walk = ctx.walk
        rows = (largest, total)
        of_ids, of_entropy = (None if g is None else g / walk.temperature for g in gradients)
        if of_ids is None and of_entropy is None:
            return (None,) * (2 + len(tensors))
        of_ids = torch.zeros_like(ids, dtype=torch.float32) if of_ids is None else of_ids
        inputs, weights = tuple(tensors[::2]), tuple(tensors[1::2])
        wanted = ctx.needs_input_grad[2:]
        sums = [
            torch.zeros_like(x, dtype=torch.float32) if w else None for x, w in zip(inputs, wanted[::2], strict=True)
        ]
        of_weights = [torch.empty_like(x) if w else None for x, w in zip(weights, wanted[1::2], strict=True)]
        table, ctx.kept = ctx.kept, None
        for block in reversed(walk.blocks()):
            # Torch's kernel leaves exp(z - the rank's largest z) in a float32 block that was kept; others hold logits.
            kept_largest = ctx.kept_largest if table is not None and table.dtype == torch.float32 else None
            table = logits_of(inputs, weights, block) if table is None else table
            if walk.kernel == "triton":
                from slime.logprobs import walk_kernels

                walk_kernels.to_gradient(
                    *(table, ids, chosen, rows, of_ids, entropy, of_entropy),
                    **{"first": walk.first + block.start, "temperature": walk.temperature},
                )
            else:
                _to_gradient(table, walk, block, rows, kept_largest, ids, of_ids, entropy, of_entropy)
            _add_gradients(table, block, inputs, weights, sums, of_weights)
            table = None
        for gradient in of_weights:
            if gradient is not None:
                gradient[walk.columns :] = 0.0
        of_inputs = [None if s is None else s.to(x.dtype) for s, x in zip(sums, inputs, strict=True)]
        pairs = zip(of_inputs, of_weights, strict=True)
        return None, None, *(gradient for pair in pairs for gradient in pair)


def _to_gradient(
    table: Tensor,
    walk: Walk,
    block: slice,
    rows: tuple[Tensor, Tensor],
    kept_largest: Tensor | None,
    ids: Tensor,
    of_ids: Tensor,
    entropy: Tensor,
    of_entropy: Tensor | None,
) -> None:
    """Replace the logits ``table`` ``[N, width]`` of a block by their gradient, in place.

    With ``kept_largest`` the table holds ``exp(z - kept_largest)`` instead of logits. ``rows`` are ``m`` and ``s`` of each row.
    The function keeps no reference to the table, so that two blocks never exist together.
    """
    largest, total = rows
    for part in _slices(table):
        if kept_largest is None:
            values = walk.scaled(table[part]).sub_(largest[part].unsqueeze(-1)).exp_()
            factor = total[part].reciprocal()
        else:
            values, factor = table[part], (kept_largest[part] - largest[part]).exp_().div_(total[part])
        share = of_ids[part].sum(-1)
        if of_entropy is None:
            values.mul_(-(share * factor).unsqueeze(-1))
        else:
            p = values.mul_(factor.unsqueeze(-1))
            by_entropy = torch.xlogy(p, p).addcmul_(p, entropy[part].unsqueeze(-1))
            p.mul_(-share.unsqueeze(-1)).sub_(by_entropy.mul_(of_entropy[part].unsqueeze(-1)))
        columns, here = walk.places(ids[part], block)
        values.scatter_add_(-1, columns, of_ids[part] * here)
        if table.dtype != torch.float32:
            table[part] = values


def _add_gradients(
    table: Tensor,
    block: slice,
    inputs: tuple[Tensor, ...],
    weights: tuple[Tensor, ...],
    sums: list[Tensor | None],
    of_weights: list[Tensor | None],
) -> None:
    """Store the weights' gradients in the rows ``block``, and add its share to the inputs' gradients."""
    for rows, weight, total, of_weight in zip(inputs, weights, sums, of_weights, strict=True):
        if of_weight is not None:
            torch.mm(table.T, rows, out=of_weight[block])
        if total is None:
            continue
        if total.dtype == table.dtype:
            total.addmm_(table, weight[block])
        elif table.device.type == "cpu":
            total.add_(table @ weight[block])
        else:
            torch.addmm(total, table, weight[block], out_dtype=total.dtype, out=total)


def log_probs_of_head(
    pairs: HeadPairs,
    ids: Tensor,
    *,
    temperature: float,
    chunk: int,
    with_entropy: bool = True,
    group: Any = None,
    vocab_size: int | None = None,
    id_range: tuple[int, int] | None = None,
    kernel: Kernel | None = None,
) -> tuple[Tensor, Tensor]:
    """Return log probabilities of ``ids`` in the shape of ``ids``, and entropies ``[N]``, both float32.

    Args:
        pairs: inputs and weights with logits ``[N, V/n]``.
        ids: ``[N]``, or ``[N, K]`` for several tokens per row.
        temperature: divisor of the logits.
        chunk: at most as many logits exist at a time as this many whole rows have.
        with_entropy: whether to compute entropies; if False they are zero and carry no gradient.
        group: the ranks that share the vocabulary; all of them call together.
        vocab_size: number of tokens, if the vocabulary is padded.
        id_range: bounds of ``ids``, if the caller knows them; else they are read from the device, which waits for it.
        kernel: what computes the elementwise part; by default :func:`kernel_on` chooses.

    Raises:
        ValueError: an id is outside the vocabulary.
    """
    walk = Walk.of_head(pairs, len(ids), temperature, chunk, with_entropy, group, vocab_size, kernel)
    whole = pairs[0][1].size(0) * (group.size() if is_split(group) else 1)
    _check_ids(id_range or _range_of(ids), whole if vocab_size is None else min(vocab_size, whole))
    flat = (ids.unsqueeze(-1) if ids.dim() == 1 else ids).contiguous()
    tensors = [tensor for rows, weight in pairs for tensor in (rows.to(weight.dtype), weight)]
    log_probs, entropy = HeadWalk.apply(flat, walk, *tensors)  # pyright: ignore[reportGeneralTypeIssues]
    return log_probs.reshape(ids.shape), entropy


def _range_of(ids: Tensor) -> tuple[int, int]:
    low, high = torch.stack(ids.aminmax()).tolist() if ids.numel() else (0, 0)
    return low, high


def _check_ids(id_range: tuple[int, int], vocabulary: int) -> None:
    low, high = id_range
    if low < 0 or high >= vocabulary:
        raise ValueError(
            f"token ids {low} to {high} do not fit a vocabulary of {vocabulary} tokens; "
            "tokenize the samples with the model's own tokenizer"
        )


@dataclass(frozen=True)
class ResponseRows:
    """Hidden states of response rows, and the head that maps them to logits.

    Attributes:
        pairs: inputs ``[N, H_i]`` and weights ``[V/n, H_i]`` of the head.
        chunk: rows of logits that may exist at a time; zero or less: the default.
        group: the ranks that share the vocabulary, or None.
        vocab_size: number of tokens, if the vocabulary is padded.
        kernel: what computes the elementwise part; None: the device's default.

    Example:
        >>> hidden, head = torch.eye(3, 4), torch.eye(5, 4)  # three rows, a vocabulary of five tokens
        >>> rows = ResponseRows([(hidden, head)], chunk=0)
        >>> log_probs, entropies = rows.log_probs(torch.tensor([0, 1, 4]), temperature=1.0)
        >>> log_probs.shape, entropies.shape, rows.most_likely().tolist()
        (torch.Size([3]), torch.Size([3]), [0, 1, 2])
    """

    pairs: HeadPairs
    chunk: int
    group: Any = None
    vocab_size: int | None = None
    kernel: Kernel | None = None

    def __len__(self) -> int:
        return len(self.pairs[0][0])

    def log_probs(
        self,
        ids: Tensor,
        *,
        temperature: float,
        with_entropy: bool = True,
        id_range: tuple[int, int] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return log probabilities of ``ids`` ``[N]`` or ``[N, K]``, and entropies ``[N]``; see :func:`log_probs_of_head`."""
        return log_probs_of_head(
            self.pairs,
            ids,
            temperature=temperature,
            chunk=chunk_rows(self.chunk, self.pairs[0][1].size(0)),
            with_entropy=with_entropy,
            group=self.group,
            vocab_size=self.vocab_size,
            id_range=id_range,
            kernel=self.kernel,
        )

    @torch.no_grad()
    def most_likely(self) -> Tensor:
        """Return the most likely token ``[N]`` of each row, the first of equals; all ranks of ``group`` call together."""
        chunk = chunk_rows(self.chunk, self.pairs[0][1].size(0))
        walk = Walk.of_head(self.pairs, len(self), 1.0, chunk, False, self.group, self.vocab_size, self.kernel)
        inputs, weights = [rows.to(weight.dtype) for rows, weight in self.pairs], [weight for _, weight in self.pairs]
        best = inputs[0].new_full((len(self),), -torch.inf, dtype=torch.float32)
        ids = torch.full((len(self),), walk.first, device=best.device)
        for block in walk.blocks():
            value, place = logits_of(inputs, weights, block).float().max(-1)
            ids = torch.where(value > best, place + walk.first + block.start, ids)
            best = torch.maximum(best, value)
        if is_split(self.group):
            largest = best.clone()
            dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self.group)
            ids = torch.where(best == largest, ids, torch.iinfo(ids.dtype).max)
            dist.all_reduce(ids, op=dist.ReduceOp.MIN, group=self.group)
        return ids

    def nothing(self) -> Tensor:
        """Return zero with a gradient path to the head and the hidden states."""
        rows = self.pairs[0][0]
        ids = rows.new_zeros(len(rows)).long()
        return self.log_probs(ids, temperature=1.0, with_entropy=False, id_range=(0, 0))[0].sum() * 0.0
