"""Log probabilities of response tokens from hidden states, without the logits of a whole sequence.

Guarantees: at most ``chunk`` rows of logits exist at any time, in the forward and in the backward pass; old, new and reference
log probabilities take this one path: LM head in the model's dtype, float32 from there on, divided by the temperature.

With gradients the last chunk, whose backward pass comes first, keeps its logits; every other one is computed again when its
gradient is due. A micro-batch of one chunk computes its logits once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from slime.backends.trainer.own_logits import log_probs_of_own_logits

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
        lm_head: ``[n, H] -> [n, V]``, a new tensor at each call.
        temperature: divisor of the logits.
        chunk: rows per chunk.
        entropy_grad: whether the entropy carries a gradient.
        group: the ranks that the vocabulary is split over, when ``lm_head`` gives this rank's columns.
    """

    def one_chunk(rows: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return log_probs_of_own_logits(
            lm_head(rows), ids, temperature=temperature, entropy_grad=entropy_grad, group=group
        )

    whole, rest = divmod(len(targets), chunk)
    sizes = ([rest] if rest or not whole else []) + [chunk] * whole
    pieces = list(zip(hidden.split(sizes), targets.split(sizes), strict=True))
    parts = [
        checkpoint(one_chunk, *piece, use_reentrant=False, preserve_rng_state=False)
        if torch.is_grad_enabled()
        else one_chunk(*piece)
        for piece in pieces[:-1]
    ]
    parts.append(one_chunk(*pieces[-1]))
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
