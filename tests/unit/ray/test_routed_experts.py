"""Experts that engines report stay with their tokens, whatever cuts a response, and become training data with nothing made up."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lab.testkit.rollout_engine import RolloutEngine, rollout_args, rollout_engine
from slime.args import Arguments
from slime.exceptions import EngineError
from slime.rollout import sglang_rollout
from slime.rollout.custom_conversion import ConversionError, convert_with
from slime.rollout.generation import GenerateState, request_of, take_answer
from slime.rollout.train_data import TrainDataError, replayed_experts
from slime.utils.types import OWN_CHOICE, Sample, take_experts
from tests.helpers.checkpoints import config_only

PROMPT = [11, 12, 13]
REPLY = [5, 9, 2, 8, 4, 4, 7]
LAYERS, PER_TOKEN, EXPERTS = 3, 2, 8


def row(version: str, place: int) -> list[list[int]]:
    """The experts of a token: the first says which weights, the second which place."""
    return [[int(version), (place + layer) % 4 + 4] for layer in range(LAYERS)]


def rows(*versions: str) -> list[list[list[int]]]:
    """The rows of the tokens from the first on, each under its weights."""
    return [row(version, place) for place, version in enumerate(versions)]


@pytest.fixture
def args(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Arguments:
    monkeypatch.setattr("slime.rollout.generation.load_tokenizer", lambda *_, **__: SimpleNamespace())
    monkeypatch.setattr("slime.rollout.generation.load_processor", lambda *_, **__: None)
    changes = {"num_hidden_layers": LAYERS, "num_experts": EXPERTS, "num_experts_per_tok": PER_TOKEN}
    args = rollout_args(config_only(tmp_path / "moe", model_type="qwen3_moe", **changes))
    args.use_rollout_routing_replay = True
    return args


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, args: Arguments) -> Iterator[RolloutEngine]:
    with rollout_engine(monkeypatch, REPLY) as engine:
        engine.experts, engine.version = row, "0"
        yield engine


def answered(engine: RolloutEngine, args: Arguments, cuts: list[int], **limits: int) -> Sample:
    """Ask until the response is whole; the weights are others after every cut."""
    engine.prompt_tokens = len(PROMPT)
    GenerateState(args).aborted = True  # every request that is cut comes back
    sample = Sample(tokens=list(PROMPT))
    for version, count in enumerate(cuts, start=1):
        engine.cut = [count]
        asyncio.run(sglang_rollout.generate(args, sample, {"max_new_tokens": len(REPLY), **limits}))
        engine.version = str(version)
    engine.cut = []
    asyncio.run(sglang_rollout.generate(args, sample, {"max_new_tokens": len(REPLY), **limits}))
    return sample


def test_a_response_in_one_piece(engine: RolloutEngine, args: Arguments) -> None:
    sample = answered(engine, args, [])
    assert sample.rollout_routed_experts.dtype == np.int16
    assert sample.rollout_routed_experts.tolist() == rows(*["0"] * 9)
    assert sample.tokens == PROMPT + REPLY


def test_a_token_keeps_the_experts_it_was_sampled_with(engine: RolloutEngine, args: Arguments) -> None:
    sample = answered(engine, args, [2, 0, 3])
    # The last token of an answer runs in the next request, with the weights of that.
    assert sample.rollout_routed_experts.tolist() == rows(*"0000", *"222", *"33")
    assert [request["routed_experts_start_len"] for request in engine.requests] == [0, 4, 4, 7]
    assert sample.tokens == PROMPT + REPLY


def test_a_truncated_response_has_its_rows(engine: RolloutEngine, args: Arguments) -> None:
    sample = answered(engine, args, [], max_new_tokens=4)
    assert sample.status == Sample.Status.TRUNCATED
    assert len(sample.rollout_routed_experts) == len(PROMPT) + 4 - 1


def test_rows_that_an_abort_did_not_bring_come_with_the_next_answer(engine: RolloutEngine, args: Arguments) -> None:
    engine.holds, engine.held_tokens = (lambda number: number == 0), 2

    async def held() -> Sample:
        engine.prompt_tokens = len(PROMPT)
        state, sample = GenerateState(args), Sample(tokens=list(PROMPT))
        task = asyncio.create_task(sglang_rollout.generate(args, sample, {"max_new_tokens": len(REPLY)}))
        while not engine.requests:
            await asyncio.sleep(0)
        state.aborted = True
        while not task.done():
            engine._abort.set()
            await asyncio.sleep(0)
        assert (sample.response_length, sample.rollout_routed_experts) == (2, None)
        return await sglang_rollout.generate(args, sample, {"max_new_tokens": len(REPLY)})

    sample = asyncio.run(held())
    assert sample.rollout_routed_experts.tolist() == rows(*["0"] * 9)


def test_several_turns_record_what_a_tool_said_too(engine: RolloutEngine, args: Arguments) -> None:
    async def turns() -> Sample:
        state, sample = GenerateState(args), Sample(tokens=list(PROMPT))
        for version in ("1", "2"):
            engine.version = version
            payload = await request_of(state, sample, {"max_new_tokens": 99})
            assert payload is not None
            take_answer(args, sample, await engine._generate(SimpleNamespace(content=json.dumps(payload), headers={})))  # type: ignore[arg-type]
            sample.append_response_tokens(tokens=[7, 8, 9], trainable=False)
        return sample

    sample = asyncio.run(turns())
    expected = rows(*["1"] * 9, *["2"] * 10)
    assert sample.rollout_routed_experts.tolist() == expected
    data = converted(args, sample)
    # No trained token depends on what the last tool said.
    assert data[: len(expected)].tolist() == expected
    assert (data[len(expected) :] == OWN_CHOICE).all()
    assert len(data) == len(sample.tokens) - 1


def converted(args: Arguments, sample: Sample) -> np.ndarray:
    """The training data of one sample."""
    given, tokens, masks = [sample.rollout_routed_experts], [sample.tokens], [sample.loss_mask or []]
    return replayed_experts(args, ["sample 7"], given, tokens, masks)["rollout_routed_experts"][0]


def some(count: int) -> np.ndarray:
    return np.array(rows(*["1"] * count), dtype=np.int16).reshape(count, LAYERS, PER_TOKEN)


@pytest.mark.parametrize(
    ("experts", "says"),
    [
        (None, "sample 7: rollout_routed_experts is missing: .*--enable-return-routed-experts"),
        (
            some(4)[:, :2],
            r"is int16 \(4, 2, 2\); 5 tokens in 3 layers with 2 experts each need whole numbers \(4, 3, 2\)",
        ),
        (some(4).astype(float), "is float64"),
        (some(4)[0], "is int16"),
        (some(3), "has 3 rows; 5 tokens need 4"),
        (some(5), "has 5 rows; 5 tokens need 4"),
        (some(4) + 7, "has an expert id outside the model's 8"),
        (some(4) - 2, "has an expert id outside the model's 8"),
        (
            some(4) * [[[1, 1]], [[1, 1]], [[1, 0]], [[0, 0]]],
            r"has an expert twice for 1 tokens, first \[0, 0\] for token 3 in layer 0: .*use --use-routing-replay",
        ),
        ([[1], [1, 2]], "is not an array: "),
    ],
)
def test_what_does_not_fit_is_one_line(args: Arguments, experts: Any, says: str) -> None:
    sample = Sample(tokens=[1, 2, 3, 4, 5], response_length=2, loss_mask=[1, 1], rollout_routed_experts=experts)
    with pytest.raises(TrainDataError, match=says) as raised:
        converted(args, sample)
    assert "\n" not in str(raised.value)


def test_without_trained_tokens_there_is_nothing_to_replay(args: Arguments) -> None:
    for mask, experts in (([], None), ([0, 0], None), ([0, 0], some(1))):
        sample = Sample(tokens=[1, 2, 3, 4, 5], response_length=len(mask), loss_mask=mask)
        sample.rollout_routed_experts = experts
        found = converted(args, sample)
        assert found.shape == (4, LAYERS, PER_TOKEN)
        assert (found[0 if experts is None else 1 :] == OWN_CHOICE).all()


def test_a_conversion_of_ones_own_gives_them_too(args: Arguments) -> None:
    good = {"tokens": [[1, 2, 3]], "response_lengths": [1], "rewards": [0.0], "loss_masks": [[1]]}
    data = good | {"rollout_routed_experts": [some(2).tolist()]}
    assert convert_with(lambda *_: data, args, [])["rollout_routed_experts"][0].tolist() == some(2).tolist()
    for wrong in (good, good | {"rollout_routed_experts": 3}, good | {"rollout_routed_experts": [some(2), some(2)]}):
        with pytest.raises(ConversionError, match="clause convert-8"):
            convert_with(lambda *_, wrong=wrong: wrong, args, [])


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ([0] * 11, "the engine sent 11 experts for 2 tokens in 3 layers with 2 each"),
        ([8] * 12, "expert id outside the model's 8"),
        ([-1] * 12, "expert id outside the model's 8"),
    ],
)
def test_an_engine_of_another_model_is_an_error(args: Arguments, sent: list[int], says: str) -> None:
    encoded = base64.b64encode(np.array(sent, dtype="<i4").tobytes()).decode()
    with pytest.raises(EngineError, match=f"sample 3: .*{says}"):
        take_experts(args, Sample(index=3, tokens=[1, 2, 3]), {"routed_experts": encoded}, 3)


def test_an_evaluation_does_not_ask_for_experts(engine: RolloutEngine, args: Arguments) -> None:
    args.eval_max_context_len = None
    sample = asyncio.run(sglang_rollout.generate(args, Sample(tokens=list(PROMPT)), {"max_new_tokens": 9}, True))
    assert (sample.response_length, sample.rollout_routed_experts) == (len(REPLY), None)


def test_without_the_flag_nothing_is_asked_for_and_none_are_taken(engine: RolloutEngine, args: Arguments) -> None:
    args.use_rollout_routing_replay = False
    sample = answered(engine, args, [2])
    assert sample.rollout_routed_experts is None
    assert not any("return_routed_experts" in request for request in engine.requests)
    assert replayed_experts(args, ["one"], [None], [sample.tokens], [[1]]) == {}
