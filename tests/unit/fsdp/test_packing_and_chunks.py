"""Micro-batches point at the right rows; log probabilities in chunks equal the whole and bound the memory."""

from __future__ import annotations

import collections
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slime.backends.fsdp_utils.model import PolicyModel
from slime.backends.fsdp_utils.packed_attention import NAME, resolve
from slime.backends.megatron_utils.loss import get_log_probs_and_entropy, get_responses
from slime.backends.trainer.logprobs import chunk_rows, chunked_log_probs
from slime.backends.trainer.packing import build
from slime.utils.ppo_utils import log_probs_and_entropy
from tests.helpers.tolerance import assert_near
from tests.helpers.trainer import trainer_args

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
    assert resolve("sdpa", True, ["full_attention"]) == NAME
    assert resolve("sdpa", True, ["full_attention", "sliding_attention"]) == "sdpa"
    assert resolve("sdpa", False, None) == "sdpa"
    assert resolve("flash_attention_2", True, None) == "flash_attention_2"


def head(rows: int, width: int, vocab: int) -> tuple[torch.Tensor, torch.nn.Linear, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(rows, width, generator=generator, requires_grad=True)
    linear = torch.nn.Linear(width, vocab, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(vocab, width, generator=generator))
    return hidden, linear, torch.randint(0, vocab, (rows,), generator=generator)


def gradients(chunk: int, entropy_grad: bool) -> tuple[torch.Tensor, ...]:
    hidden, linear, targets = head(13, 8, 50)
    log_probs, entropy = chunked_log_probs(
        hidden, targets, linear, temperature=0.6, chunk=chunk, entropy_grad=entropy_grad
    )
    total = (log_probs * torch.arange(13)).sum() + (entropy.sum() if entropy_grad else 0.0)
    return (log_probs, entropy, *torch.autograd.grad(total, [hidden, linear.weight]))


@pytest.mark.parametrize("entropy_grad", [True, False])
@pytest.mark.parametrize("chunk", [1, 4, 13])
def test_chunks_equal_the_whole(chunk: int, entropy_grad: bool) -> None:
    for value, expected in zip(gradients(chunk, entropy_grad), gradients(1000, entropy_grad), strict=True):
        assert_near(value, expected)


class LargestTensor(torch.utils._python_dispatch.TorchDispatchMode):
    """Remembers the number of elements of the largest result of any operation."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.numel())
        return result


def test_a_long_reply_never_has_its_whole_logits() -> None:
    rows, vocab, chunk = 2048, 5000, 64
    hidden, linear, targets = head(rows, 8, vocab)
    with LargestTensor() as largest:
        log_probs, _ = chunked_log_probs(hidden, targets, linear, temperature=1.0, chunk=chunk)
        log_probs.sum().backward()
    assert largest.elements == chunk * vocab


class Calls(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("entropy_grad", [True, False])
def test_a_pass_without_gradients_looks_at_each_chunk_once_and_gives_the_same_bits(entropy_grad: bool) -> None:
    hidden, linear, targets = head(12, 8, 50)

    def values() -> tuple[torch.Tensor, torch.Tensor]:
        return chunked_log_probs(hidden, targets, linear, temperature=0.7, chunk=4, entropy_grad=entropy_grad)

    with torch.no_grad(), Calls() as calls:
        without = values()
    assert calls.counts["mm"] == calls.counts["exp"] == 3
    assert all(torch.equal(one, other) for one, other in zip(without, values(), strict=True))


@pytest.mark.parametrize(("chunk", "chunks"), [(12, 1), (5, 3), (4, 3)])
def test_every_chunk_but_the_last_is_computed_again_for_its_gradient(chunk: int, chunks: int) -> None:
    hidden, linear, targets = head(12, 8, 50)
    with Calls() as calls:
        chunked_log_probs(hidden, targets, linear, temperature=0.7, chunk=chunk)[0].sum().backward()
    assert calls.counts["mm"] == 3 * chunks + chunks - 1


def test_default_chunk_bounds_the_bytes() -> None:
    assert chunk_rows(17, 1000) == 17
    assert chunk_rows(-1, 151_936) * 151_936 * 4 <= 256 * 2**20
    assert chunk_rows(0, 10**12) == 1


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
