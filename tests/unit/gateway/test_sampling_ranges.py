"""Whatever sampling a request may state is within what SGLang's own checks and tensors take."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st

from chat_codec.detokenize import Vocabulary
from openclaw.config.bounds import STOP_STRINGS
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.errors import ApiError
from openclaw.gateway.sampling import plan_sampling
from openclaw.gateway.schema import parse_request
from tests.helpers.sglang_sampling import sampling_params

SamplingParams = sampling_params()
USER = [{"role": "user", "content": "Hello?"}]
EDGES = [
    0,
    1,
    -1,
    2,
    1e-300,
    1e-45,
    1e-40,
    1e-7,
    1e-6,
    0.01,
    2**31 - 1,
    2**31,
    2**32,
    2**63 - 1,
    2**64 - 1,
    -(2**31) - 1,
]
NUMBERS = st.sampled_from(EDGES) | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
FLOATS = NUMBERS | st.floats(-2, 2) | st.floats(0, 1)
INTEGERS = NUMBERS | st.integers(-2, 4000)
TOKENS = st.integers(0, 10**9).map(str) | st.integers(0, 2000).map(lambda n: f"{n:05d}") | st.just("0")
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "repetition_penalty"), FLOATS),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), FLOATS),
    **dict.fromkeys(("top_k", "max_tokens", "min_tokens", "seed"), INTEGERS),
    "logit_bias": st.dictionaries(TOKENS, FLOATS, max_size=3),
    "stop_token_ids": st.lists(INTEGERS, max_size=3),
    "stop": st.lists(st.text(min_size=1, max_size=9), max_size=STOP_STRINGS.most + 1),
    "ignore_eos": st.booleans(),
}
STATED = st.lists(st.sampled_from(sorted(FIELDS)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: FIELDS[name] for name in names})
)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Any) -> Vocabulary:
    return Vocabulary(tokenizer)


def planned(vocabulary: Vocabulary, stated: dict[str, Any]) -> dict[str, Any]:
    request, _ = parse_request(json.dumps({"messages": USER, **stated}).encode())
    return plan_sampling(request, RuntimeConfig(), 1000, vocabulary=vocabulary).parameters


@given(st.data())
def test_what_is_accepted_is_within_the_engines_range(vocabulary: Vocabulary, data: st.DataObject) -> None:
    try:
        parameters = planned(vocabulary, data.draw(STATED))
    except ApiError as error:
        event(f"refused: {error.param}")
        return
    engine = SamplingParams(**parameters)
    engine.verify(vocabulary.size)
    engine.normalize(vocabulary.tokenizer)
    torch.tensor([engine.top_k, engine.min_new_tokens], dtype=torch.int32)
    divisors = torch.tensor([engine.temperature, engine.top_p, engine.repetition_penalty], dtype=torch.float32)
    logits = torch.tensor([-1e4, 0.0, 1e4], dtype=torch.float32)
    for divisor in divisors:
        assert torch.isfinite(logits / divisor).all()
    assert all(token < vocabulary.size for token in engine.stop_token_ids or ())
    assert 1 <= engine.max_new_tokens <= 1000


@pytest.mark.parametrize("top_k", [0, 2**31, 2**63, 10**6])
def test_a_top_k_beyond_the_vocabulary_is_off(vocabulary: Vocabulary, top_k: int) -> None:
    assert "top_k" not in planned(vocabulary, {"top_k": top_k})


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 9e-7])
def test_a_tiny_temperature_is_greedy(vocabulary: Vocabulary, temperature: float) -> None:
    assert planned(vocabulary, {"temperature": temperature})["temperature"] == 0


def test_two_spellings_of_a_token_are_one_bias(vocabulary: Vocabulary) -> None:
    assert planned(vocabulary, {"logit_bias": {"5": 1, "005": 2}})["logit_bias"] == {"5": 2.0}


@pytest.mark.parametrize(
    ("stated", "param"),
    [
        ({"top_k": -2}, "top_k"),
        ({"top_p": 1e-300}, "top_p"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"repetition_penalty": 0.009}, "repetition_penalty"),
        ({"min_tokens": 2**31}, "min_tokens"),
        ({"seed": 2**63, "temperature": 0}, "seed"),
        ({"logit_bias": {"999999999": 1}}, "logit_bias"),
        ({"stop_token_ids": [2**31]}, "stop_token_ids"),
    ],
)
def test_what_the_engine_cannot_take_is_refused_by_name(
    vocabulary: Vocabulary, stated: dict[str, Any], param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        planned(vocabulary, stated)
    assert (caught.value.status, caught.value.param) == (400, param)
