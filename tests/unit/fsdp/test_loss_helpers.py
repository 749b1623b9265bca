"""The helpers that custom losses import, on the whole vocabulary: against float64, and the rules of their arguments."""

from __future__ import annotations

import pytest
import torch

from slime.args import Arguments
from slime.logprobs.packed_logits import get_log_probs_and_entropy, get_responses, get_values
from slime.utils.ppo_utils import compute_log_probs
from slime.utils.vocab_parallel import log_probs_of_ids
from tests.helpers.float64_losses import VOCABULARY, reference_log_probs, vocabulary_case
from tests.helpers.tolerance import assert_near

LAYOUT = ("unconcat_tokens", "total_lengths", "response_lengths")


@pytest.mark.parametrize("rows", [-1, 1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probs_and_entropy_are_those_of_float64_whatever_the_dtype(dtype: torch.dtype, rows: int) -> None:
    case = vocabulary_case()
    args = Arguments(rollout_temperature=0.7, log_probs_chunk_size=rows)
    layout = {name: case[name] for name in LAYOUT}
    logits = case["logits"].to(dtype)
    before = logits.clone()
    empty, found = get_log_probs_and_entropy(logits, args=args, with_entropy=True, max_seq_lens=[9], **layout)
    assert empty.numel() == 0
    assert torch.equal(logits, before)
    log_probs, entropy = reference_log_probs(case["logits"], layout, 0.7)
    for mine, right in zip([*found["log_probs"], *found["entropy"]], [*log_probs, *entropy], strict=True):
        assert mine.dtype == torch.float32
        assert_near(mine, right)
    _, without = get_log_probs_and_entropy(logits, args=args, **layout)
    assert set(without) == {"log_probs"}


def test_responses_keep_the_dtype_and_have_the_temperature() -> None:
    case = vocabulary_case()
    layout = {name: case[name] for name in LAYOUT}
    args = Arguments(rollout_temperature=2.0)
    pairs = list(get_responses(case["logits"].bfloat16(), args=args, max_seq_lens=None, **layout))
    assert [tuple(rows.shape) for rows, _ in pairs] == [(4, VOCABULARY), (0, VOCABULARY), (5, VOCABULARY)]
    assert pairs[0][0].dtype == torch.bfloat16
    assert_near(pairs[0][0], case["logits"][0, 1:5] / 2.0, dtype=torch.bfloat16, roundings=1)
    assert torch.equal(pairs[2][1], case["unconcat_tokens"][2][-5:])


def test_values_are_not_scaled() -> None:
    case = vocabulary_case()
    layout = {name: case[name] for name in LAYOUT}
    output = torch.arange(19.0).reshape(1, 19, 1)
    _, found = get_values(output, args=Arguments(rollout_temperature=0.5), **layout)
    assert [values.tolist() for values in found["values"]] == [[1, 2, 3, 4], [], [13, 14, 15, 16, 17]]
    with pytest.raises(ValueError, match="one value per token"):
        get_values(case["logits"], args=Arguments(), **layout)
    with pytest.raises(ValueError, match="no entropy"):
        get_values(output, args=Arguments(), with_entropy=True, **layout)


def test_logits_that_are_too_short_are_named() -> None:
    case = vocabulary_case()
    layout = {name: case[name] for name in LAYOUT}
    with pytest.raises(ValueError, match="19 tokens"):
        list(get_responses(case["logits"][:, :10], args=Arguments(rollout_temperature=1.0), **layout))


def test_a_group_of_one_rank_is_a_whole_vocabulary() -> None:
    class Alone:
        def size(self) -> int:
            return 1

    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([0, 7, 3])
    found = compute_log_probs(logits, ids, Alone())
    assert found.shape == (3, 1)
    assert_near(found.squeeze(-1), torch.log_softmax(logits.double(), -1)[torch.arange(3), ids])


@pytest.mark.parametrize("outside", [-1, 4, 9])
def test_an_id_outside_the_vocabulary_is_an_error(outside: int) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    assert_near(log_probs_of_ids(logits, torch.tensor([[3, 0]])), logits.double().log_softmax(-1)[:, [3, 0]])
    with pytest.raises(RuntimeError, match="out of bounds"):
        log_probs_of_ids(logits, torch.tensor([[3, outside]]))
