"""Compute response log probabilities from hidden states, without a whole sequence's logits.

Guarantees:

* Old, new, reference and distillation log probabilities take the same path: LM head in the model's dtype, then float32,
  divided by the temperature.
* In either pass, no more logits exist at a time than ``chunk`` rows of this rank's vocabulary have.

Rows are in the order of the samples. A context-parallel rank has the rows it holds. :mod:`slime.utils.head_memory` computes
the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from slime.logprobs.head_walk import HeadWalk, Walk, logits_of
from slime.utils.head_memory import block_width, chunk_rows
from slime.utils.vocab_parallel import is_split

HeadPairs = Sequence[tuple[Tensor, Tensor]]
"""Inputs ``[N, H_i]`` and weights ``[V/n, H_i]`` with logits ``sum_i x_i W_i^T``: an LM head, its bias, its adapter."""


def log_probs_of_head(
    pairs: HeadPairs,
    ids: Tensor,
    *,
    temperature: float,
    chunk: int,
    with_entropy: bool = True,
    group: Any = None,
    vocab_size: int | None = None,
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

    Raises:
        ValueError: an id is outside the vocabulary.
    """
    width = pairs[0][1].size(0)
    first, whole = (group.rank() * width, group.size() * width) if is_split(group) else (0, width)
    vocabulary = whole if vocab_size is None else min(vocab_size, whole)
    _check_ids(ids, vocabulary)
    columns = min(width, max(0, vocabulary - first))
    walk = Walk(temperature, block_width(len(ids), columns, chunk), first, columns, with_entropy, group)
    flat = ids.unsqueeze(-1) if ids.dim() == 1 else ids
    tensors = [tensor for rows, weight in pairs for tensor in (rows.to(weight.dtype), weight)]
    log_probs, entropy = HeadWalk.apply(flat, walk, *tensors)  # pyright: ignore[reportGeneralTypeIssues]
    return log_probs.reshape(ids.shape), entropy


def _check_ids(ids: Tensor, vocabulary: int) -> None:
    low, high = torch.stack(ids.aminmax()).tolist() if ids.numel() else (0, 0)
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
    """

    pairs: HeadPairs
    chunk: int
    group: Any = None
    vocab_size: int | None = None

    def __len__(self) -> int:
        return len(self.pairs[0][0])

    def log_probs(self, ids: Tensor, *, temperature: float, with_entropy: bool = True) -> tuple[Tensor, Tensor]:
        """Return log probabilities of ``ids`` ``[N]`` or ``[N, K]``, and entropies ``[N]``; see :func:`log_probs_of_head`."""
        return log_probs_of_head(
            self.pairs,
            ids,
            temperature=temperature,
            chunk=chunk_rows(self.chunk, self.pairs[0][1].size(0)),
            with_entropy=with_entropy,
            group=self.group,
            vocab_size=self.vocab_size,
        )

    @torch.no_grad()
    def most_likely(self) -> Tensor:
        """Return the most likely token ``[N]`` of each row, the first of equals; all ranks of ``group`` call together."""
        width = self.pairs[0][1].size(0)
        first = self.group.rank() * width if is_split(self.group) else 0
        columns = width if self.vocab_size is None else min(width, max(0, self.vocab_size - first))
        chunk = chunk_rows(self.chunk, width)
        walk = Walk(1.0, block_width(len(self), columns, chunk), first, columns, False, self.group)
        inputs, weights = [rows.to(weight.dtype) for rows, weight in self.pairs], [weight for _, weight in self.pairs]
        best = inputs[0].new_full((len(self),), -torch.inf, dtype=torch.float32)
        ids = torch.full((len(self),), first, device=best.device)
        for block in walk.blocks():
            value, place = logits_of(inputs, weights, block).float().max(-1)
            ids = torch.where(value > best, place + first + block.start, ids)
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
        return self.log_probs(ids, temperature=1.0, with_entropy=False)[0].sum() * 0.0
