"""Micro-batches point at the right rows, and the helpers of custom losses read the rows of the response."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from lab.testkit.trainer import trainer_args
from slime.algorithms.losses import LOSSES
from slime.backends.fsdp_utils.attention import PACKED, resolve_attention
from slime.backends.fsdp_utils.model import PolicyModel
from slime.backends.trainer.micro_batch import RolloutShard, add_metrics, build, reducer_of, to_cpu, to_device
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
    lengths = [len(ids) for ids, _ in samples]
    padded = [ids + [0] * (max(lengths) - len(ids)) for ids, _ in samples]
    whole = [[token for ids, _ in samples for token in ids]] if packed else padded
    assert batch.input_ids.tolist() == whole
    if packed:
        assert batch.position_ids is not None
        assert batch.position_ids.tolist() == [[place for length in lengths for place in range(length)]]
    known = [batch.input_ids, batch.rows, batch.targets, batch.token_rows]
    assert all(tensor.dtype == torch.int64 and tensor.is_contiguous() for tensor in known)
    assert batch.target_range == (int(batch.targets.min()), int(batch.targets.max()))
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


class Transfers(TorchDispatchMode):
    """Remembers the dtype and the size of every copy from one device to another, and whether it blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[torch.dtype, int, bool]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ == "_to_copy" and kwargs.get("device", args[0].device) != args[0].device:
            self.found.append((args[0].dtype, args[0].numel(), not kwargs.get("non_blocking", False)))
        return func(*args, **kwargs)


def test_a_device_gets_one_copy_per_dtype_that_nobody_waits_for() -> None:
    """The meta device stands for a GPU: it has shapes, but no values and no pinned memory."""
    data = {
        **{"tokens": [[1, 2, 3], [4, 5, 6, 7]], "response_lengths": [1, 3], "rewards": [0.0, 1.0], "partition": [0, 1]},
        **{"loss_masks": [[1], [1, 0, 1]], "rollout_log_probs": [[-1.0], [-2.0, -3.0, -4.0]]},
        **{"micro_batch_indices": [[[0, 1]]], "global_batch_sizes": [2], "global_token_counts": [4]},
    }
    shard = RolloutShard(data)
    with Transfers() as copies:
        inputs = build(data["tokens"], data["response_lengths"], packed=True, device=torch.device("meta"))
    assert copies.found == [(torch.int64, 7 + 7 + 4 + 4 + 7, False)]
    assert [tuple(getattr(inputs, name).shape) for name in ("input_ids", "rows", "targets")] == [(1, 7), (4,), (4,)]
    with Transfers() as copies:
        batch = shard.batch([1, 0], torch.device("meta"))
    assert sorted((size, blocks) for _, size, blocks in copies.found) == [(4, False), (7 + 4, False)]
    assert [[len(value) for value in batch[name]] for name in ("loss_masks", "unconcat_tokens")] == [[3, 1], [4, 3]]
    assert batch["rewards"] == [1.0, 0.0]


WITHOUT_A_WAIT = [
    {},
    {"calculate_per_token_loss": True},
    {"advantage_estimator": "gspo"},
    {"advantage_estimator": "cispo"},
    {"use_opsm": True, "use_tis": True},
    {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "k3", "entropy_coef": 0.01},
    {"loss_type": "sft_loss"},
]


@pytest.mark.parametrize("changes", WITHOUT_A_WAIT, ids=str)
def test_a_loss_and_its_metrics_never_look_at_a_value(changes: dict[str, Any]) -> None:
    """Tensors of the meta device have no values: a look at one, for which a GPU would be waited for, raises."""
    args, device, lengths = trainer_args("", **changes), torch.device("meta"), [2, 3]
    data = {
        **{"tokens": [[1, 2, 3], [4, 5, 6, 7]], "response_lengths": lengths, "rewards": [0.0, 1.0]},
        **{"loss_masks": [[1, 0], [1, 0, 1]], "rollout_log_probs": [[-1.0] * length for length in lengths]},
        **{"rollout_mask_sums": [1, 2], "partition": [0, 1], "micro_batch_indices": [[[0, 1]]]},
        **{"global_batch_sizes": [2], "global_token_counts": [3]},
    }
    shard, sums = RolloutShard(data), {}
    for name in ("log_probs", "ref_log_probs", "advantages"):
        shard.set_computed(name, [torch.zeros(length) for length in lengths])
    batch = shard.batch([0, 1], device)
    new, entropy = (torch.zeros(5, device=device, requires_grad=True) for _ in range(2))
    reduce = reducer_of(args, batch, lengths)
    with Transfers() as copies:
        values = (list(tensor.split(lengths)) for tensor in (new, entropy))
        loss, metrics = LOSSES[args.loss_type](args, batch, *values, reduce)
        loss.backward()
        add_metrics(sums, metrics, device)
    assert not copies.found
    assert sums.keys() == metrics.keys()


def test_values_keep_their_place_on_the_way_to_a_device_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere:
        """Names the CPU as a device that needs a copy."""

        type = "elsewhere"

    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device, non_blocking: tensor.clone())
    given = [torch.arange(6).view(2, 3), torch.rand(4), torch.tensor(7), torch.rand(2, 1), torch.zeros(0)]
    there = to_device(given, Elsewhere())  # type: ignore[arg-type]
    for one, other in zip(given, there, strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype
    product = there[1].requires_grad_() * there[1]
    there[3].add_(1.0)
    product.sum().backward()  # it saved its factors, whose memory the other one's change did not touch
    back = to_cpu({5: torch.arange(3.0), 2: torch.arange(2.0)})
    assert {index: value.tolist() for index, value in back.items()} == {5: [0.0, 1.0, 2.0], 2: [0.0, 1.0]}
    assert [value.untyped_storage().nbytes() for value in back.values()] == [12, 8]


def test_packed_attention_is_used_where_it_is_exact() -> None:
    assert resolve_attention("sdpa", True, ["full_attention"]) == PACKED["sdpa"]
    assert resolve_attention("sdpa", True, ["full_attention", "sliding_attention"]) == "sdpa"
    assert resolve_attention("sdpa", False, None) == "sdpa"
    assert resolve_attention("eager", True, None) == "eager"


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
