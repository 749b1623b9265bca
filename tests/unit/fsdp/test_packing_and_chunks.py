"""Micro-batches point at the right rows, and the helpers of custom losses read the rows of the response."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.testkit.trainer import trainer_args
from slime.backends.fsdp_utils.model import PACKED_SDPA, PolicyModel, resolve_attention
from slime.backends.trainer.micro_batch import build
from slime.logprobs.packed_logits import get_log_probs_and_entropy, get_responses
from slime.utils.ppo_utils import log_probs_and_entropy
from tests.helpers.tolerance import assert_near

CPU = torch.device("cpu")
SAMPLES = st.lists(
    st.lists(st.integers(0, 99), min_size=1, max_size=8).flatmap(
        lambda ids: st.tuples(st.just(ids), st.integers(0, len(ids) - 1))
    ),
    min_size=1,
    max_size=5,
)


@given(SAMPLES, st.booleans())
def test_rows_predict_the_response_of_their_sample(samples: list[tuple[list[int], int]], packed: bool) -> None:
    batch = build([ids for ids, _ in samples], [response for _, response in samples], packed=packed, device=CPU)
    flat = batch.input_ids.flatten()
    assert flat[batch.token_rows].tolist() == [token for ids, _ in samples for token in ids]
    targets = batch.per_sample(batch.targets)
    rows = batch.per_sample(batch.rows)
    for (ids, response), target, row in zip(samples, targets, rows, strict=True):
        assert target.tolist() == ids[len(ids) - response :]
        assert flat[row].tolist() == ids[len(ids) - response - 1 : len(ids) - 1]


def test_positions_restart_at_every_sample() -> None:
    batch = build([[1, 2, 3], [4], [5, 6]], [1, 0, 1], packed=True, device=CPU)
    assert batch.position_ids is not None
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 0, 1]]


@pytest.mark.parametrize("packed", [True, False])
def test_no_sample_still_gives_a_row(packed: bool) -> None:
    batch = build([], [], packed=packed, device=CPU)
    assert batch.is_filler
    assert len(batch.rows) == 1
    assert batch.per_sample(torch.ones(1)) == []


def test_a_response_without_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token before it"):
        build([[1, 2]], [2], packed=True, device=CPU)


def test_packed_attention_is_used_where_it_is_exact() -> None:
    assert resolve_attention("sdpa", True, ["full_attention"]) == PACKED_SDPA
    assert resolve_attention("sdpa", True, ["full_attention", "sliding_attention"]) == "sdpa"
    assert resolve_attention("sdpa", False, None) == "sdpa"
    assert resolve_attention("flash_attention_2", True, None) == "flash_attention_2"


@pytest.mark.parametrize("chunk", [-1, 2])
def test_contract_helpers_agree_with_the_kernel(chunk: int) -> None:
    args = trainer_args("", log_probs_chunk_size=chunk, rollout_temperature=0.5)
    logits = torch.randn(1, 7, 11, generator=torch.Generator().manual_seed(2), requires_grad=True)
    tokens = [torch.tensor([1, 2, 3, 4]), torch.tensor([5, 6, 7])]
    common = {"args": args, "unconcat_tokens": tokens, "total_lengths": [4, 3], "response_lengths": [3, 1]}
    pieces = list(get_responses(logits, **common, max_seq_lens=None))
    assert [ids.tolist() for _, ids in pieces] == [[2, 3, 4], [7]]
    assert_near(pieces[0][0], logits[0, 0:3] / 0.5, roundings=1)
    assert_near(pieces[1][0], logits[0, 5:6] / 0.5, roundings=1)
    empty, result = get_log_probs_and_entropy(logits, **common, with_entropy=True, max_seq_lens=[4])
    assert empty.numel() == 0
    for (chunk_logits, ids), log_probs, entropy in zip(pieces, result["log_probs"], result["entropy"], strict=True):
        expected = log_probs_and_entropy(chunk_logits, ids, with_entropy=True)
        assert_near((log_probs, entropy), expected)
    assert "entropy" not in get_log_probs_and_entropy(logits, **common)[1]
    with pytest.raises(ValueError, match="need \\[1, T, V\\]"):
        list(get_responses(logits[0], **common))


class Backbone(torch.nn.Module):
    """An embedding is the last hidden state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(100, 8), torch.nn.Linear(8, 100, bias=False)
        self.base_model = lambda input_ids, **_: SimpleNamespace(last_hidden_state=self.embedding(input_ids))

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head


@pytest.mark.parametrize("packed", [True, False])
def test_logits_of_a_custom_loss_are_those_of_the_real_tokens_and_no_view(packed: bool) -> None:
    samples = [[1, 2, 3], [4, 5, 6, 7, 8]]
    model = Backbone()
    batch = build(samples, [1, 2], packed=packed, device=CPU)
    logits = PolicyModel(model, "sdpa")(batch, temperature=1.0, chunk_size=-1, want_logits=True)
    expected = model.head(model.embedding(torch.tensor([token for ids in samples for token in ids])))
    assert_near(logits, expected.unsqueeze(0))
    assert not logits._is_view()
