"""Response logits, log probabilities, entropies and values of a packed micro-batch, for custom losses.

``logits`` is ``[1, T, V]``: the samples one after the other. Under Megatron's tensor parallelism it is this rank's
``[1, T, V/n]``, and all ranks of the group call together; the results are those of the whole vocabulary. Under context
parallelism the logits are those of the tokens this rank holds, and what is returned of a response is the part that they
predict (``context_parallel``), as are the per-token lists of the batch; lengths and ids are given whole. Guarantees: nothing
writes to the logits; log probabilities are float32 from the logits on, also when the logits are bfloat16, which is how the
old ones are computed. The keyword ``max_seq_lens`` of older callers is accepted and has no meaning for packed logits.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from slime.backends.megatron_utils.context_parallel import own_place, padded_length, predicting_rows
from slime.utils.ppo_utils import log_probs_and_entropy
from slime.utils.vocab_parallel import tensor_parallel_group


def _response_rows(
    logits: Tensor, unconcat_tokens: Sequence[Tensor], total_lengths: Sequence[int], response_lengths: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield per sample the rows held here that predict its response, as they are, and the ids that they predict."""
    rank, ranks = own_place()
    held = [padded_length(total, ranks) // ranks for total in total_lengths]
    if logits.dim() != 3 or logits.size(0) != 1 or logits.size(1) < sum(held):
        raise ValueError(f"logits are {tuple(logits.shape)}; samples of {sum(total_lengths)} tokens need [1, T, V]")
    samples = zip(logits[0, : sum(held)].split(held), unconcat_tokens, total_lengths, response_lengths, strict=True)
    for own, tokens, total, response in samples:
        if ranks == 1:
            yield own[total - response - 1 : total - 1], tokens[total - response :]
            continue
        rows, predicted = predicting_rows(total, response, rank, ranks)
        yield own[rows.to(own.device)], tokens[(total - response + predicted).to(tokens.device)]


def get_responses(
    logits: Tensor,
    *,
    args: Namespace,
    unconcat_tokens: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    max_seq_lens: Any = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield per sample the logits ``[R, V/n]`` that predict its response, divided by the temperature, and the ids ``[R]``.

    The logits keep their dtype.
    """
    for rows, ids in _response_rows(logits, unconcat_tokens, total_lengths, response_lengths):
        yield rows / args.rollout_temperature, ids


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
    """Return ``(empty tensor, {"log_probs": [R_i]..., "entropy": [R_i]... if asked})``, float32.

    ``non_loss_data`` is what Megatron's schedule passes to a function whose result is not a loss; it changes nothing.
    """
    log_probs, entropies = [], []
    group = tensor_parallel_group()
    rows = getattr(args, "log_probs_chunk_size", -1)
    for chunk, tokens in _response_rows(logits, unconcat_tokens, total_lengths, response_lengths):
        size = rows if rows > 0 else max(1, len(tokens))
        parts = [
            log_probs_and_entropy(piece.float() / args.rollout_temperature, ids, with_entropy, group)
            for piece, ids in zip(chunk.split(size), tokens.split(size), strict=True)
        ]
        log_probs.append(torch.cat([part[0] for part in parts]))
        entropies.append(torch.cat([part[1] for part in parts if part[1] is not None]) if with_entropy else None)
    result: dict[str, list[Tensor]] = {"log_probs": log_probs}
    if with_entropy:
        result["entropy"] = [entropy for entropy in entropies if entropy is not None]
    return torch.empty(0, device=logits.device), result


def get_values(
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
    """Return ``(empty tensor, {"values": [R_i]...})`` float32 from a critic's output ``[1, T, 1]``, not divided by anything.

    Raises:
        ValueError: when the output has more than one value per token, or an entropy of values is asked for.
    """
    if logits.size(-1) != 1:
        raise ValueError(f"a critic has one value per token, [1, T, 1]; this output is {tuple(logits.shape)}")
    if with_entropy:
        raise ValueError("values have no entropy: call get_values without with_entropy")
    rows = _response_rows(logits, unconcat_tokens, total_lengths, response_lengths)
    return torch.empty(0, device=logits.device), {"values": [chunk.squeeze(-1).float() for chunk, _ in rows]}
