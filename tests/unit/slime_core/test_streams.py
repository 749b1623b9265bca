"""One declaration carries a new per-token stream from a sample through ledger, shards and context parallelism to its loss."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.ledger.records import Verdict
from openclaw.ledger.store import Ledger
from openclaw.training.samples import make_sample
from slime.algorithms.losses.custom import contract_batch, custom_loss
from slime.algorithms.losses.reduce import make_reducer
from slime.backends.megatron_utils.context_parallel import own_part
from slime.backends.trainer.micro_batch import RolloutShard
from slime.contract.training_side import RESPONSES, K, rollout_data
from slime.exceptions import SampleError
from slime.logprobs.context_parallel import predicting_rows
from slime.rollout.custom_conversion import checked
from slime.rollout.train_data import TrainData, TrainDataError, convert, split_by_dp
from slime.utils import streams
from slime.utils.streams import Stream, TrainBatch
from slime.utils.types import Sample
from tests.helpers.tolerance import assert_near
from tests.unit.ray.test_train_data import arguments

CPU = torch.device("cpu")
NEW = {
    "numbers": (Stream("surprise", attribute="surprise", finite=True, in_contract=True), [-0.1, -1.0 / 3.0, -2.5e-7]),
    "top-K ids": (
        Stream("advised", attribute="advised", dtype="int64", top_k=True, in_contract=True),
        [[5, 9], [6, 2**31 - 1], [0, 7]],
    ),
}


@pytest.fixture(params=list(NEW))
def declared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Stream, list[Any]]:
    """A stream that nothing but its declaration knows, and its values for the three tokens of `make_turn`."""
    stream, values = NEW[request.param]
    monkeypatch.setattr(streams, "STREAMS", (*streams.STREAMS, stream))
    return stream, values


def sample_with(name: str, values: list[Any] | None) -> Sample:
    sample = make_sample(make_turn(), 1.0, score=1)
    setattr(sample, name, values)
    return sample


def train_data(name: str, values: list[Any]) -> TrainData:
    """Four samples, every second with the stream."""
    samples = [sample_with(name, None if index % 2 else values) for index in range(4)]
    return convert(arguments(), samples)


def test_a_sample_refuses_values_that_do_not_fit(declared: tuple[Stream, list[Any]]) -> None:
    stream, values = declared
    with pytest.raises(SampleError, match=f"{stream.name} has 2 entries for 3 response tokens"):
        sample_with(stream.name, values[:2]).validate()
    with pytest.raises(
        SampleError, match=f"{stream.name} is already set for 3 response tokens; append before setting it"
    ):
        sample_with(stream.name, values).append_response_tokens(tokens=[8], log_probs=[-1.0])
    if stream.finite:
        with pytest.raises(SampleError, match=f"{stream.name} has a value that is not finite"):
            sample_with(stream.name, [float("nan"), *values[1:]]).validate()


def test_the_ledger_gives_back_every_number(declared: tuple[Stream, list[Any]], tmp_path: Path) -> None:
    stream, values = declared
    ledger, turn = Ledger(tmp_path / "ledger.sqlite"), make_turn()
    ledger.turns.record(turn)
    ledger.turns.record_next_state(turn.id, USER_NEXT, 102.0)
    record_judged(ledger, turn.id, Verdict(score=1), [sample_with(stream.name, values)], None)
    [found] = ledger.samples.claim(0, 1)
    assert getattr(found, stream.name) == values


def test_every_rank_has_the_values_of_its_samples(declared: tuple[Stream, list[Any]]) -> None:
    stream, values = declared
    data = train_data(stream.name, values)
    assert data[stream.name] == [values, None, values, None]
    for shard in split_by_dp(data, 2, arguments(micro_batch_size=1, use_dynamic_batch_size=False)):
        held = RolloutShard(shard).fields[stream.name]
        for place, tensor in zip(shard["partition"], held, strict=True):
            assert (tensor is None) == bool(place % 2)
            if tensor is not None:
                assert tensor.dtype == getattr(torch, stream.dtype)
                torch.testing.assert_close(tensor, torch.tensor(values, dtype=tensor.dtype), rtol=0, atol=0)


def test_a_plugins_conversion_is_checked(declared: tuple[Stream, list[Any]]) -> None:
    stream, values = declared
    data = train_data(stream.name, values)
    assert checked(arguments(), {**data, stream.name: tuple(data[stream.name])})[stream.name] == data[stream.name]
    with pytest.raises(TrainDataError, match=f"entry 0: {stream.name} has 2 entries, the response 3 tokens"):
        checked(arguments(), {**data, stream.name: [values[:2], None, None, None]})


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_loss_reads_it_in_the_parts_of_context_parallel_ranks(declared: tuple[Stream, list[Any]], ranks: int) -> None:
    stream, values = declared
    [shard] = split_by_dp(train_data(stream.name, values), 1, arguments())
    batch = RolloutShard(shard).batch([0, 1, 2, 3], CPU)

    def reads_it(args: Any, batch: dict[str, Any], logits: torch.Tensor, reduce: Any) -> tuple[torch.Tensor, dict]:
        per_token = [
            torch.zeros(len(mask)) if given is None else (given.sum(-1) if stream.top_k else given).float()
            for given, mask in zip(batch[stream.name], batch["loss_masks"], strict=True)
        ]
        return reduce(torch.cat(per_token)) + 0 * logits.sum(), {}

    total = torch.zeros(())
    for rank in range(ranks):
        part = own_part(batch, rank, ranks)
        reduce = make_reducer(
            False, [len(m) for m in part["loss_masks"]], part["loss_masks"], part["rollout_mask_sums"]
        )
        total += custom_loss(reads_it, arguments(), part, torch.zeros(1, requires_grad=True), reduce)[0].detach()
        for given, own in zip(batch[stream.name], part[stream.name], strict=True):
            tokens = predicting_rows(7, 3, rank, ranks)[1]
            assert (own is None) if given is None else torch.equal(own, given[tokens])
    expected = sum(2 * torch.tensor(row).double().sum() / 3 for row in values)
    assert_near(total, torch.as_tensor(expected, dtype=total.dtype))


def test_the_contract_has_its_key_and_checks_plugins_with_it(declared: tuple[Stream, list[Any]]) -> None:
    stream, _ = declared
    data = rollout_data(arguments())
    shapes = [(length, K) if stream.top_k else (length,) for length in RESPONSES]
    assert [tuple(values.shape) for values in data[stream.name]] == shapes
    del data[stream.name]
    assert contract_batch(data)[stream.name] is None


def test_the_ledgers_columns_are_those_of_the_declarations(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger, ledger.transaction() as connection:
        columns = {row["name"]: row["type"] for row in connection.execute("PRAGMA table_info(samples)")}
    declared = {name for name, stream in streams.carried() if stream.column}
    assert {name for name, kind in columns.items() if kind == "BLOB"} == {"tokens", *declared}


def test_the_typed_batch_has_every_key() -> None:
    assert set(TrainBatch.__annotations__) == {*streams.batch_keys(), *(stream.name for stream in streams.STREAMS)}
