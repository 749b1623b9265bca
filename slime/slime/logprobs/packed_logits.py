"""Response logits, log probabilities, entropies and values of a packed micro-batch, for custom losses.

* ``logits`` is ``[1, T, V]``: all samples concatenated. A loss marked ``from_response_rows`` gets :class:`ResponseRows`
  instead; :func:`log_probs_at` and :func:`get_log_probs_and_entropy` take both.
* Under Megatron's tensor parallelism, ``logits`` is this rank's ``[1, T, V/n]``. All ranks of the group call together, and the
  results cover the whole vocabulary.
* Under context parallelism, ``logits`` covers the tokens that this rank holds. Results, like the per-token lists of the
  batch, cover the response tokens that these predict (``context_parallel``). Pass lengths and ids of the whole sample.

Guarantees: nothing writes to the logits. Log probabilities are computed in float32, even from bfloat16 logits, as the old
ones are. Older callers may pass ``max_seq_lens``; packed logits ignore it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from slime.args import Arguments
from slime.arguments.placement import padded_length
from slime.logprobs.context_parallel import own_place, predicting_rows
from slime.logprobs.response_rows import ResponseRows
from slime.utils.vocab_parallel import entropy_of_rows, log_probs_of_ids, tensor_parallel_group


def _response_rows(
    logits: Tensor | ResponseRows, total_lengths: Sequence[int], response_lengths: Sequence[int]
) -> Iterator[Tensor]:
    """Yield per sample this rank's logits that predict its response, unscaled."""
    if isinstance(logits, ResponseRows):
        raise TypeError(
            "a loss marked @from_response_rows cannot read logits; call get_log_probs_and_entropy or log_probs_at, "
            "or remove the mark"
        )
    rank, ranks = own_place()
    held = [padded_length(total, ranks) // ranks for total in total_lengths]
    if logits.dim() != 3 or logits.size(0) != 1 or logits.size(1) < sum(held):
        raise ValueError(f"logits are {tuple(logits.shape)}; samples of {sum(total_lengths)} tokens need [1, T, V]")
    samples = zip(logits[0, : sum(held)].split(held), total_lengths, response_lengths, strict=True)
    for own, total, response in samples:
        if ranks == 1:
            yield own[total - response - 1 : total - 1]
        else:
            yield own[predicting_rows(total, response, rank, ranks)[0].to(own.device)]


def get_responses(
    logits: Tensor,
    *,
    args: Arguments,
    unconcat_tokens: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    max_seq_lens: Any = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield per sample the logits ``[R, V/n]`` that predict its response, divided by the temperature, and the ids ``[R]``.

    The logits keep their dtype. At temperature 1 they are views, so copy them before you write to them.
    """
    rows_of_samples = _response_rows(logits, total_lengths, response_lengths)
    ids_of_samples = predicted_ids(unconcat_tokens, total_lengths, response_lengths)
    for rows, ids in zip(rows_of_samples, ids_of_samples, strict=True):
        yield _divided(rows, args.rollout_temperature), ids


def _divided(rows: Tensor, temperature: float) -> Tensor:
    return rows if temperature == 1.0 else rows / temperature


def predicted_ids(
    unconcat_tokens: Sequence[Tensor], total_lengths: Sequence[int], response_lengths: Sequence[int]
) -> list[Tensor]:
    """Return per sample the response tokens that this rank's rows predict."""
    rank, ranks = own_place()
    results = []
    for tokens, total, response in zip(unconcat_tokens, total_lengths, response_lengths, strict=True):
        ids = tokens[total - response :]
        if ranks > 1:
            ids = ids[predicting_rows(total, response, rank, ranks)[1].to(tokens.device)]
        results.append(ids)
    return results


def log_probs_at(
    logits: Tensor | ResponseRows,
    ids: Sequence[Tensor],
    layout: Mapping[str, Any],
    *,
    temperature: float,
    chunk: int = -1,
    with_entropy: bool = False,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return per sample the log probabilities of any tokens at its response rows, and the entropies ``[R_i]``, float32.

    Args:
        logits: packed logits, or the response rows of a loss marked ``from_response_rows``.
        ids: per sample ``[R_i, K]`` with the same K, for the rows that this rank holds.
        layout: ``total_lengths`` and ``response_lengths``, as in a batch.
        chunk: rows of packed logits per pass; zero or less: a whole sample. Response rows have their own chunk size.
        temperature: divisor of the logits.
        with_entropy: whether to return entropies; if False their list is empty.

    Returns:
        Log probabilities in the shapes of ``ids``, and entropies.
    """
    if isinstance(logits, ResponseRows):
        lengths = [len(tokens) for tokens in ids]
        result, entropy = logits.log_probs(torch.cat(list(ids)), temperature=temperature, with_entropy=with_entropy)
        return list(result.split(lengths)), list(entropy.split(lengths)) if with_entropy else []
    group = tensor_parallel_group()

    def piece_of(rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        table = _divided(rows.float(), temperature)
        entropy = entropy_of_rows(table, group) if with_entropy else table.new_zeros(len(table))
        return log_probs_of_ids(table, tokens, group), entropy

    log_probs, entropies = [], []
    rows_of_samples = _response_rows(logits, layout["total_lengths"], layout["response_lengths"])
    for rows, tokens in zip(rows_of_samples, ids, strict=True):
        pieces = list(zip(*(x.split(chunk if chunk > 0 else max(1, len(tokens))) for x in (rows, tokens)), strict=True))
        parts = [
            checkpoint(piece_of, *piece, use_reentrant=False, preserve_rng_state=False)
            if len(pieces) > 1 and torch.is_grad_enabled()
            else piece_of(*piece)
            for piece in pieces
        ]
        log_probs.append(torch.cat([part[0] for part in parts]))
        entropies.append(torch.cat([part[1] for part in parts]))
    return log_probs, entropies if with_entropy else []


def get_log_probs_and_entropy(
    logits: Tensor | ResponseRows,
    *,
    args: Arguments,
    unconcat_tokens: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    with_entropy: bool = False,
    non_loss_data: bool = True,
    max_seq_lens: Any = None,
) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """Return ``(empty tensor, {"log_probs": [R_i]..., "entropy": [R_i]... if requested})``, float32.

    Megatron's schedule passes ``non_loss_data`` to a function whose result is not a loss; it has no effect.
    """
    ids = predicted_ids(unconcat_tokens, total_lengths, response_lengths)
    log_probs, entropy = log_probs_at(
        logits,
        [tokens.unsqueeze(-1) for tokens in ids],
        {"total_lengths": total_lengths, "response_lengths": response_lengths},
        chunk=args.log_probs_chunk_size,
        temperature=args.rollout_temperature,
        with_entropy=with_entropy,
    )
    result = {"log_probs": [values.squeeze(-1) for values in log_probs]}
    if with_entropy:
        result["entropy"] = entropy
    return torch.empty(0, device=ids[0].device if ids else None), result


def get_values(
    logits: Tensor,
    *,
    args: Arguments,
    unconcat_tokens: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    with_entropy: bool = False,
    non_loss_data: bool = True,
    max_seq_lens: Any = None,
) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """Return ``(empty tensor, {"values": [R_i]...})`` float32 from a critic's output ``[1, T, 1]``, unscaled.

    Raises:
        ValueError: the output has more than one value per token, or ``with_entropy`` is set.
    """
    if logits.size(-1) != 1:
        raise ValueError(f"a critic has one value per token, [1, T, 1]; this output has shape {tuple(logits.shape)}")
    if with_entropy:
        raise ValueError("values have no entropy: call get_values without with_entropy")
    rows = _response_rows(logits, total_lengths, response_lengths)
    return torch.empty(0, device=logits.device), {"values": [chunk.squeeze(-1).float() for chunk in rows]}
