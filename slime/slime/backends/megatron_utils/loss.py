"""Response logits, log probabilities and entropies of a packed micro-batch, for custom losses.

``logits`` is ``[1, T, V]``: the samples one after the other, the whole vocabulary. Nothing writes to the logits. The
keyword ``max_seq_lens`` of older callers is accepted and has no meaning for packed logits.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from slime.utils.ppo_utils import log_probs_and_entropy


def get_responses(
    logits: Tensor,
    *,
    args: Namespace,
    unconcat_tokens: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    max_seq_lens: Any = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield per sample the logits ``[R, V]`` that predict its response, divided by the temperature, and the ids ``[R]``."""
    if logits.dim() != 3 or logits.size(0) != 1 or logits.size(1) < sum(total_lengths):
        raise ValueError(f"logits are {tuple(logits.shape)}; samples of {sum(total_lengths)} tokens need [1, T, V]")
    end = 0
    for tokens, total, response in zip(unconcat_tokens, total_lengths, response_lengths, strict=True):
        end += total
        chunk = logits[0, end - response - 1 : end - 1]
        yield chunk / args.rollout_temperature, tokens[total - response :]


def get_log_probs_and_entropy(
    logits: Tensor,
    *,
    args: Namespace,
    unconcat_tokens: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    with_entropy: bool = False,
    non_loss_data: bool = True,
    max_seq_lens: Any = None,
) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """Return ``(empty tensor, {"log_probs": [R_i]..., "entropy": [R_i]... if asked})``."""
    log_probs, entropies = [], []
    rows = args.log_probs_chunk_size
    for chunk, tokens in get_responses(
        logits,
        args=args,
        unconcat_tokens=unconcat_tokens,
        total_lengths=total_lengths,
        response_lengths=response_lengths,
    ):
        size = rows if rows > 0 else max(1, len(tokens))
        parts = [
            log_probs_and_entropy(piece, ids, with_entropy)
            for piece, ids in zip(chunk.split(size), tokens.split(size), strict=True)
        ]
        log_probs.append(torch.cat([part[0] for part in parts]))
        entropies.append(torch.cat([part[1] for part in parts if part[1] is not None]) if with_entropy else None)
    result: dict[str, list[Tensor]] = {"log_probs": log_probs}
    if with_entropy:
        result["entropy"] = [entropy for entropy in entropies if entropy is not None]
    return torch.empty(0, device=logits.device), result
