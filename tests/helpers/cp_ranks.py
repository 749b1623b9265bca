"""What a context-parallel rank does in the tests of `cp_utils`; at module level, so that new processes can import it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist

from slime.algorithms.losses.reduce import make_reducer
from slime.backends.megatron_utils.context_parallel import own_part
from slime.backends.megatron_utils.cp_utils import (
    all_gather_with_cp,
    get_sum_of_sample_mean,
    slice_log_prob_with_cp,
)
from slime.logprobs.context_parallel import own_place

# Tokens and response of samples; some have fewer tokens than a group has chunks, one has no response.
LENGTHS = [(2, 1), (3, 0), (5, 4), (12, 5), (13, 12)]


class ParallelState:
    """Stands in for Megatron's module, which takes seconds to import: one context-parallel group of all processes."""

    def __init__(self) -> None:
        self.group = dist.group.WORLD

    def model_parallel_is_initialized(self) -> bool:
        return True

    def get_context_parallel_group(self) -> Any:
        return self.group

    def get_context_parallel_rank(self) -> int:
        return dist.get_rank()

    def get_context_parallel_world_size(self) -> int:
        return dist.get_world_size()


def check_context_parallel_names(rank: int, world_size: int, store: str) -> None:
    """Compare what the ranks gather and reduce, and its gradient, with the whole tensors."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    sys.modules["megatron.core.parallel_state"] = ParallelState()  # type: ignore[assignment]
    assert own_place() == (rank, world_size)
    for width in ((), (3,)):
        for total, response in LENGTHS:
            check_gather(total, response, width, rank, world_size)
    check_reducer(rank, world_size)


def check_gather(total: int, response: int, width: tuple[int, ...], rank: int, ranks: int) -> None:
    """Each rank has a loss of its own on the gathered tensor; the gradients are those of the sum of these losses."""
    torch.manual_seed(total)
    whole = torch.randn(response, *width, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(ranks, response, *width, dtype=torch.float64)
    (weights * whole.square()).sum().backward()
    part = slice_log_prob_with_cp(whole.detach(), total, response).requires_grad_()
    gathered = all_gather_with_cp(part, total, response)
    assert torch.equal(gathered, whole)
    assert torch.equal(slice_log_prob_with_cp(gathered, total, response), part)
    if response:
        (weights[rank] * gathered.square()).sum().backward()
        torch.testing.assert_close(part.grad, slice_log_prob_with_cp(whole.grad, total, response))
    assert slice_log_prob_with_cp(list(range(response)), total, response) == [
        int(place) for place in slice_log_prob_with_cp(torch.arange(response), total, response)
    ]
    with pytest.raises(ValueError, match=f"rank {rank} of {ranks} has {len(part)} of this response"):
        all_gather_with_cp(part.new_zeros(len(part) + 1, *width), total, response)


def check_reducer(rank: int, ranks: int) -> None:
    """What the ranks reduce adds up to the whole, with masks of whole responses and with those of a custom loss's batch."""
    torch.manual_seed(7)
    totals, responses = [total for total, _ in LENGTHS], [response for _, response in LENGTHS]
    masks = [torch.randint(0, 2, (response,)) for response in responses]
    values = [torch.randn(response, dtype=torch.float64) for response in responses]
    batch: dict[str, Any] = {
        "unconcat_tokens": [torch.arange(total) for total in totals],
        "total_lengths": totals,
        "response_lengths": responses,
        "loss_masks": masks,
    }
    mine = own_part(batch, rank, ranks)
    own = [slice_log_prob_with_cp(x, *lengths) for x, lengths in zip(values, LENGTHS, strict=True)]
    for per_token in (False, True):
        for denominators in (None, [2.0] * len(masks)):
            expected = make_reducer(per_token, responses, masks, denominators)(torch.cat(values))
            for given in (masks, mine["loss_masks"]):
                reduce = get_sum_of_sample_mean(totals, responses, given, denominators, per_token)
                found = reduce(torch.cat(own))
                dist.all_reduce(found)
                torch.testing.assert_close(found, expected)
