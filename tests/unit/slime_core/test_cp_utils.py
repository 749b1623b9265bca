"""`cp_utils`: slicing and gathering are inverse, gradients and reductions are those of the whole response."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.testkit.trainer import on_ranks
from slime.algorithms.losses.reduce import make_reducer
from slime.backends.megatron_utils import cp_utils
from slime.backends.megatron_utils.cp_utils import (
    all_gather_with_cp,
    get_sum_of_sample_mean,
    slice_log_prob_with_cp,
)
from tests.helpers.cp_ranks import LENGTHS, check_context_parallel_names

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_gather_and_reduce_the_whole(ranks: int, tmp_path: Path) -> None:
    on_ranks(ranks, check_context_parallel_names, str(tmp_path / "store"))


@given(prompt=st.integers(1, 20), response=st.integers(0, 30), ranks=st.integers(1, 4), listed=st.booleans())
def test_every_value_is_on_one_rank_in_its_order(prompt: int, response: int, ranks: int, listed: bool) -> None:
    values = list(range(response)) if listed else torch.arange(response)
    parts = []
    with pytest.MonkeyPatch.context() as patch:
        for rank in range(ranks):
            patch.setattr(cp_utils, "own_place", lambda rank=rank: (rank, ranks))
            part = slice_log_prob_with_cp(values, prompt + response, response)
            assert isinstance(part, list) == listed
            parts.append([int(value) for value in part])
    assert sorted(value for part in parts for value in part) == list(range(response))
    assert all(part == sorted(part) for part in parts)


def test_one_rank_has_everything() -> None:
    listed, tensor = [0.5, 1.5], torch.tensor([0.5, 1.5])
    assert slice_log_prob_with_cp(listed, 5, 2) is listed
    assert slice_log_prob_with_cp(tensor, 5, 2) is tensor
    assert all_gather_with_cp(tensor, 5, 2) is tensor


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("denominators", [None, [4.0] * len(LENGTHS), [0.0] * len(LENGTHS)])
def test_the_reducer_is_the_trainers(per_token: bool, denominators: list[float] | None) -> None:
    totals, responses = [total for total, _ in LENGTHS], [response for _, response in LENGTHS]
    masks = [torch.arange(response) % 2 for response in responses]
    values = torch.randn(sum(responses))
    expected = make_reducer(per_token, responses, masks, denominators)(values)
    assert get_sum_of_sample_mean(totals, responses, masks, denominators, per_token)(values) == expected


def test_lengths_that_differ_are_errors() -> None:
    for values in ([0.5], torch.zeros(3)):
        with pytest.raises(ValueError, match=f"got {len(values)} values for a response of 2 tokens"):
            slice_log_prob_with_cp(values, 5, 2)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="got 1 values; rank 0 of 1 has 2 of this response"):
        all_gather_with_cp(torch.zeros(1), 5, 2)
    with pytest.raises(ValueError, match="a mask has 3 entries for a response of 2 tokens, 2 of them here"):
        get_sum_of_sample_mean([5], [2], [torch.ones(3)])
