"""Compute which positions of a sample a context-parallel rank holds and predicts.

A sample is padded at its end to ``2 n`` chunks of equal length for ``n`` ranks. Rank ``r`` holds chunks ``r`` and
``2 n - 1 - r``, so that causal attention costs every rank the same (the layout of Megatron and Transformer Engine).

Guarantees:

* No real token attends to padding, which comes last.
* Exactly one rank predicts each response token.
* A single rank holds whole samples without padding.

All functions are pure except :func:`own_place`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slime.arguments.placement import padded_length
from slime.utils.vocab_parallel import megatron_state


def own_place() -> tuple[int, int]:
    """Return this process's rank in its context-parallel group and the group's size; ``(0, 1)`` without Megatron."""
    state = megatron_state()
    if state is None:
        return 0, 1
    return state.get_context_parallel_rank(), state.get_context_parallel_world_size()


def held_positions(length: int, rank: int, ranks: int) -> Tensor:
    """Return the ascending positions that ``rank`` holds of a sample; ``length`` and above are padding."""
    if ranks == 1:
        return torch.arange(length)
    chunk = padded_length(length, ranks) // (2 * ranks)
    starts = (rank * chunk, (2 * ranks - 1 - rank) * chunk)
    return torch.cat([torch.arange(start, start + chunk) for start in starts])


def held_sources(lengths: list[int], rank: int, ranks: int) -> Tensor:
    """Return the index ``[T]`` into a pack of samples of each token that ``rank`` holds; -1 for padding."""
    sources, start = [], 0
    for length in lengths:
        places = held_positions(length, rank, ranks)
        sources.append(torch.where(places < length, places + start, -1))
        start += length
    return torch.cat(sources)


def predicting_rows(total: int, response: int, rank: int, ranks: int) -> tuple[Tensor, Tensor]:
    """Return which of the rank's positions predict a response token, and that token's index in the response."""
    places = held_positions(total, rank, ranks) - (total - response - 1)
    rows = ((places >= 0) & (places < response)).nonzero().squeeze(1)
    return rows, places[rows]
