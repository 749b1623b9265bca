"""Split a pack over a context-parallel group, and join the ranks' parts again.

The layout is that of `slime.logprobs.context_parallel`. All functions except :func:`whole_responses` are pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from slime.arguments.placement import padded_length
from slime.backends.trainer.micro_batch import MicroBatch
from slime.logprobs.context_parallel import held_positions, held_sources, predicting_rows
from slime.utils import streams
from slime.utils.streams import TrainBatch
from slime.utils.vocab_parallel import megatron_state


@dataclass(frozen=True)
class Share:
    """One rank's part of a micro-batch.

    Attributes:
        input_ids: ``[1, T]``, padding is token 0.
        position_ids: ``[1, T]`` positions in the whole sample.
        padded_lengths: lengths of the whole samples, over all ranks of the group.
        rows: ``[M]`` positions in ``input_ids`` whose output predicts a response token.
        owned: ``[M]`` indices of these response tokens in the micro-batch.
    """

    input_ids: Tensor
    position_ids: Tensor
    padded_lengths: list[int]
    rows: Tensor
    owned: Tensor


def share_of(batch: MicroBatch, rank: int, ranks: int) -> Share:
    """Return the part of the packed ``batch`` on ``rank`` of ``ranks``."""
    assert batch.position_ids is not None
    device = batch.input_ids.device
    if ranks == 1:
        owned = torch.arange(len(batch.rows), device=device)
        return Share(batch.input_ids, batch.position_ids, batch.sequence_lengths, batch.rows, owned)
    positions, rows, owned = [], [], []
    before, held = 0, 0
    responses = batch.response_lengths or [0] * len(batch.sequence_lengths)
    for total, response in zip(batch.sequence_lengths, responses, strict=True):
        places = held_positions(total, rank, ranks)
        positions.append(places)
        predicting, predicted = predicting_rows(total, response, rank, ranks)
        rows.append(predicting + held)
        owned.append(predicted + before)
        before, held = before + response, held + len(places)
    sources = held_sources(batch.sequence_lengths, rank, ranks)
    with_padding = torch.nn.functional.pad(batch.input_ids[0], (0, 1))  # source -1 is token 0
    return Share(
        input_ids=with_padding[sources.to(device)].unsqueeze(0),
        position_ids=torch.cat(positions).to(device).unsqueeze(0),
        padded_lengths=[padded_length(total, ranks) for total in batch.sequence_lengths],
        rows=torch.cat(rows).to(device),
        owned=torch.cat(owned).to(device),
    )


def joined_chunks(parts: Tensor) -> Tensor:
    """Return the whole sample ``[2 n c, ...]`` from the parts of ``n`` ranks, ``[n, 2 c, ...]``."""
    if len(parts) == 1:
        return parts[0]
    first, mirrored = parts.chunk(2, dim=1)
    return torch.cat([first, mirrored.flip(0)]).flatten(0, 1)


def whole_responses(values: Tensor, owned: Tensor, count: int) -> Tensor:
    """Return ``[count]`` values from the ``[M]`` that each rank of the context-parallel group owns; collective.

    The gradient is that of this rank's own values. If every rank computes the same loss, the ranks' gradients therefore
    add up to the loss's gradient.
    """
    state = megatron_state()
    if state is None or state.get_context_parallel_world_size() == 1:
        return values
    whole = values.new_zeros(count).index_copy(0, owned, values.detach())
    dist.all_reduce(whole, group=state.get_context_parallel_group())
    return whole.index_copy(0, owned, values)


def own_part(batch: TrainBatch, rank: int, ranks: int) -> TrainBatch:
    """Return the batch of a custom loss with this rank's part of every per-token list, of ``tokens`` and ``full_loss_masks``.

    The mask sums stay those of whole samples, so the ranks' reduced losses add up to the whole loss.
    """
    if ranks == 1:
        return batch
    lengths = list(zip(batch["total_lengths"], batch["response_lengths"], strict=True))
    owned = [predicting_rows(total, response, rank, ranks) for total, response in lengths]
    result: dict[str, Any] = dict(batch)
    result.setdefault("rollout_mask_sums", [float(mask.sum()) for mask in batch["loss_masks"]])
    for name in [stream.name for stream in streams.STREAMS if stream.per_token]:
        if name in result:
            values = zip(result[name], owned, strict=True)
            result[name] = [None if value is None else value[tokens.to(value.device)] for value, (_, tokens) in values]
    ids, masks = [], []
    for tokens, mask, (rows, _) in zip(batch["unconcat_tokens"], result["loss_masks"], owned, strict=True):
        places = held_positions(len(tokens), rank, ranks).to(tokens.device)
        ids.append(torch.where(places < len(tokens), tokens[places.clamp(max=len(tokens) - 1)], 0))
        masks.append(mask.new_zeros(len(places)).index_copy(0, rows.to(mask.device), mask))
    result |= {"tokens": torch.cat(ids).unsqueeze(0), "full_loss_masks": torch.cat(masks).unsqueeze(0)}
    return cast(TrainBatch, result)
