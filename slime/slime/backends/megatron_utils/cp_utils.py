"""Context parallelism under the names that custom losses import: slice, gather and reduce a response.

A rank has the response tokens that its positions predict (`slime.logprobs.context_parallel`); a single rank has the
whole response. Guarantee: `slice_log_prob_with_cp` and `all_gather_with_cp` are inverse on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.nn import functional as differentiable

from slime.algorithms.losses.reduce import make_reducer
from slime.logprobs.context_parallel import own_place, predicting_rows
from slime.utils.vocab_parallel import megatron_state

Values = TypeVar("Values", Tensor, list[float])


def slice_log_prob_with_cp(log_prob: Values, total_length: int, response_length: int) -> Values:
    """Return this rank's part of a ``[R]`` list or tensor; unchanged with one rank.

    Args:
        log_prob: ``[R]`` one value per response token; a tensor may have further dimensions.
        total_length: tokens of prompt and response.
        response_length: R.

    Raises:
        ValueError: there are not R values.
    """
    if len(log_prob) != response_length:
        raise ValueError(f"got {len(log_prob)} values for a response of {response_length} tokens")
    rank, ranks = own_place()
    if ranks == 1:
        return log_prob
    owned = predicting_rows(total_length, response_length, rank, ranks)[1]
    if isinstance(log_prob, Tensor):
        return log_prob[owned.to(log_prob.device)]
    return [log_prob[place] for place in owned.tolist()]


def all_gather_with_cp(tensor: Tensor, total_length: int, response_length: int) -> Tensor:
    """Return ``[R, ...]`` from the parts of all ranks; collective, forward and backward.

    A part's gradient sums over all ranks' losses, because these losses add up. So every
    rank must use the result in its loss, if only times zero.

    Args:
        tensor: this rank's part, see `slice_log_prob_with_cp`.
        total_length: tokens of prompt and response.
        response_length: R.

    Raises:
        ValueError: this rank's part has another length.
    """
    rank, ranks = own_place()
    owned = predicting_rows(total_length, response_length, rank, ranks)[1].to(tensor.device)
    if len(tensor) != len(owned):
        raise ValueError(f"got {len(tensor)} values; rank {rank} of {ranks} has {len(owned)} of this response")
    if ranks == 1 or response_length == 0:
        return tensor
    own = tensor.new_zeros((response_length, *tensor.shape[1:])).index_copy(0, owned, tensor)
    return differentiable.all_reduce(own, group=_group())


def get_sum_of_sample_mean(
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    loss_masks: Sequence[Tensor],
    sample_denoms: Sequence[float] | None = None,
    calculate_per_token_loss: bool = False,
) -> Callable[[Tensor], Tensor]:
    """Return the reducer for custom losses: it maps this rank's values to a number that adds up over ranks.

    Args:
        total_lengths: tokens of prompt and response of each sample.
        response_lengths: tokens of the response of each sample.
        loss_masks: mask of each sample, for the whole response or for this rank's part, as in a custom loss's batch.
        sample_denoms: divisor of each sample's sum, at least 1; default: the sum of its whole mask. With parts
            and without ``sample_denoms`` the call is collective.
        calculate_per_token_loss: sum over tokens instead of over sample means.

    Raises:
        ValueError: a mask matches neither the response nor this rank's part of it.
    """
    rank, ranks = own_place()
    masks = []
    for total, response, mask in zip(total_lengths, response_lengths, loss_masks, strict=True):
        owned = predicting_rows(total, response, rank, ranks)[1].to(mask.device)
        if len(mask) not in (response, len(owned)):
            raise ValueError(
                f"a mask has {len(mask)} entries for a response of {response} tokens, {len(owned)} of them here"
            )
        masks.append(mask[owned] if len(mask) == response else mask)
    if sample_denoms is None and ranks > 1 and not calculate_per_token_loss:
        sums = torch.tensor([float(mask.sum()) for mask in masks], device=masks[0].device if masks else None)
        dist.all_reduce(sums, group=_group())
        sample_denoms = sums.tolist()
    return make_reducer(calculate_per_token_loss, [len(mask) for mask in masks], masks, sample_denoms)


def _group() -> dist.ProcessGroup:
    """Return the context-parallel group, which has more than one rank."""
    return megatron_state().get_context_parallel_group()
