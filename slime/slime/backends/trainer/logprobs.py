"""Log probabilities of response tokens from hidden states, without the logits of a whole sequence.

Guarantees: at most ``chunk`` rows of logits exist at any time, in the forward and in the backward pass (each chunk is
recomputed when its gradient is due); old, new and reference log probabilities take this one path: LM head in the model's
dtype, float32 from there on, divided by the temperature.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from slime.utils.ppo_utils import log_probs_and_entropy

# Bytes of float32 logits of a chunk when --log-probs-chunk-size does not say.
DEFAULT_CHUNK_BYTES = 256 * 2**20


def chunk_rows(requested: int, vocab_size: int) -> int:
    """Rows per chunk: ``requested``, or when that is not positive as many as fit :data:`DEFAULT_CHUNK_BYTES`."""
    return requested if requested > 0 else max(1, DEFAULT_CHUNK_BYTES // (4 * vocab_size))


def chunked_log_probs(
    hidden: Tensor,
    targets: Tensor,
    lm_head: Callable[[Tensor], Tensor],
    *,
    temperature: float,
    chunk: int,
    entropy_grad: bool = False,
    group: Any = None,
) -> tuple[Tensor, Tensor]:
    """Return log probabilities and entropies, ``[N]`` float32 each.

    Args:
        hidden: ``[N, H]`` final hidden states of the rows that predict ``targets``.
        targets: ``[N]`` token ids.
        lm_head: ``[n, H] -> [n, V]``.
        temperature: divisor of the logits.
        chunk: rows per chunk.
        entropy_grad: whether the entropy carries a gradient.
        group: the ranks that the vocabulary is split over, when ``lm_head`` gives this rank's columns.
    """

    def one_chunk(rows: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        logits = lm_head(rows).float() / temperature
        at_once = entropy_grad or not torch.is_grad_enabled()
        log_probs, entropy = log_probs_and_entropy(logits, ids, at_once, group)
        if entropy is None:
            with torch.no_grad():
                entropy = log_probs_and_entropy(logits, ids, True, group)[1]
        assert entropy is not None
        return log_probs, entropy

    parts = []
    for rows, ids in zip(hidden.split(chunk), targets.split(chunk), strict=True):
        if torch.is_grad_enabled():
            parts.append(checkpoint(one_chunk, rows, ids, use_reentrant=False, preserve_rng_state=False))
        else:
            parts.append(one_chunk(rows, ids))
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
