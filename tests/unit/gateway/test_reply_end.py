"""`ignore_eos`, `min_tokens`, `stop_token_ids`, `skip_special_tokens`: served as asked, trained only where the policy ended."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chat_codec.detokenize import Vocabulary
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.errors import ApiError
from openclaw.gateway.sampling import exclusion, plan_sampling
from openclaw.gateway.schema import parse_request
from tests.unit.gateway.conftest import CONTEXT_LENGTH, Stack, Starter
from tests.unit.gateway.test_gateway_chat import USER, merged_stream

NEUTRAL = {"ignore_eos": False, "min_tokens": 0, "stop_token_ids": [], "skip_special_tokens": True}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


async def ask(stack: Stack, **change: Any) -> Any:
    return await stack.client.chat.completions.create(model="any", messages=USER, extra_body=change)


def ids_of(stack: Stack, text: str) -> list[int]:
    return stack.tokenizer.encode(text, add_special_tokens=False)


def state(stack: Stack) -> tuple[str, str | None]:
    turn = stack.turns()[-1]
    return turn.state, turn.reason


@pytest.mark.parametrize("change", [{}, NEUTRAL, dict.fromkeys(NEUTRAL), *({name: NEUTRAL[name]} for name in NEUTRAL)])
async def test_values_without_effect_leave_the_request_and_the_turn_alone(stack: Stack, change: dict[str, Any]) -> None:
    stack.say("one two")
    reply = await ask(stack, **change)
    assert reply.choices[0].message.content == "one two"
    (request,) = stack.engine.requests
    assert request["sampling_params"].keys() == {"temperature", "top_p", "max_new_tokens"}
    assert state(stack) == ("waiting", None)


async def test_a_reply_past_its_end_is_served_counted_and_not_trained(stack: Stack) -> None:
    stack.say("one two")
    count = len(ids_of(stack, "one two")) + 1
    reply = await ask(stack, ignore_eos=True, max_tokens=2 * count)
    assert stack.engine.requests[0]["sampling_params"]["ignore_eos"] is True
    assert reply.choices[0].message.content == "one twoone two"
    assert reply.choices[0].finish_reason == "length"
    assert state(stack) == ("excluded", "ignore_eos")
    assert stack.ledger.views.counts()["turn_reasons"] == {"ignore_eos": 1}
    assert stack.turns()[0].response_ids.count(stack.tokenizer.eos_token_id) == 2


async def test_a_stop_string_still_ends_a_reply_that_ignores_its_end(stack: Stack) -> None:
    stack.say("one STOP two")
    reply = await stack.client.chat.completions.create(
        model="any", messages=USER, stop="STOP", max_tokens=50, extra_body={"ignore_eos": True}
    )
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("one ", "stop")
    assert state(stack) == ("excluded", "ignore_eos")


async def test_min_tokens_reach_the_engine_and_exclude_the_turn(stack: Stack) -> None:
    stack.say("one two")
    await ask(stack, min_tokens=3, max_tokens=3)
    parameters = stack.engine.requests[0]["sampling_params"]
    assert (parameters["min_new_tokens"], parameters["max_new_tokens"]) == (3, 3)
    assert state(stack) == ("excluded", "min_tokens")


async def test_an_engine_that_goes_on_owes_only_the_rest_of_min_tokens(stack: Stack) -> None:
    stack.say("one two three four")
    stack.engine.break_after = 2
    await ask(stack, min_tokens=3)
    assert [request["sampling_params"]["min_new_tokens"] for request in stack.engine.requests] == [3, 1]
    stack.say("one two three four")
    stack.engine.break_after = 4
    await ask(stack, min_tokens=3)
    assert [request["sampling_params"]["min_new_tokens"] for request in stack.engine.requests[2:]] == [3, 0]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_token_ends_the_reply_without_its_text(stack: Stack, stream: bool) -> None:
    stack.say("one two three")
    first, stop, *_ = ids_of(stack, "one two three")
    body = {"stop_token_ids": [stop, stop]}
    if stream:
        answer = await merged_stream(stack, messages=USER, extra_body=body, logprobs=True)
        text, finish = answer["content"], answer["finish"]
    else:
        reply = await stack.client.chat.completions.create(model="any", messages=USER, extra_body=body, logprobs=True)
        text, finish = reply.choices[0].message.content, reply.choices[0].finish_reason
        assert [entry.token for entry in reply.choices[0].logprobs.content] == [stack.tokenizer.decode([first])]
    assert stack.engine.requests[0]["sampling_params"]["stop_token_ids"] == [stop]
    assert (text, finish) == (stack.tokenizer.decode([first]), "stop")
    (turn,) = stack.turns()
    assert turn.response_ids == [first, stop]
    assert len(turn.response_logprobs) == 2
    assert (turn.state, turn.reason) == ("excluded", "stop_token_ids")


async def test_a_stop_token_that_was_not_reached_or_is_the_models_own_end_changes_nothing(stack: Stack) -> None:
    stack.say("one two", "one two")
    (other,) = ids_of(stack, "x")
    for stops in ([other], [other, stack.tokenizer.eos_token_id]):
        reply = await ask(stack, stop_token_ids=stops)
        assert reply.choices[0].message.content == "one two"
        assert state(stack) == ("waiting", None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stop", ["two", ["x", " tw"]])
async def test_a_reply_that_a_stop_string_ends_is_not_trained(stack: Stack, stream: bool, stop: Any) -> None:
    stack.say("one two three")
    if stream:
        text = (await merged_stream(stack, messages=USER, stop=stop))["content"]
    else:
        text = (await ask(stack, stop=stop)).choices[0].message.content
    assert text.strip() == "one"
    assert state(stack) == ("excluded", "stop")


async def test_a_stop_string_that_was_not_reached_or_is_the_models_own_end_changes_nothing(stack: Stack) -> None:
    end = stack.tokenizer.decode([stack.tokenizer.eos_token_id])
    for body in ({"stop": "five"}, {"stop": [end]}, {"stop": [end], "skip_special_tokens": False}):
        stack.say("one two")
        assert (await ask(stack, **body)).choices[0].message.content == "one two"
        assert state(stack) == ("waiting", None)


async def test_special_tokens_are_shown_but_for_the_one_that_ends_the_reply(stack: Stack) -> None:
    end = stack.tokenizer.eos_token_id
    special = min(Vocabulary(stack.tokenizer).silent - {end})
    shown = f"one{stack.tokenizer.decode([special])} two"
    sampled = [*ids_of(stack, "one"), special, *ids_of(stack, " two"), end]
    for skip, text in ((None, "one two"), (True, "one two"), (False, shown)):
        stack.replies.extend([sampled, sampled])
        reply = await stack.client.chat.completions.create(
            model="any", messages=USER, logprobs=True, extra_body={"skip_special_tokens": skip}
        )
        streamed = await merged_stream(stack, messages=USER, extra_body={"skip_special_tokens": skip})
        assert reply.choices[0].message.content == streamed["content"] == text
        assert "".join(entry.token for entry in reply.choices[0].logprobs.content) == text
        assert "skip_special_tokens" not in stack.engine.requests[-1]["sampling_params"]
        assert stack.turns()[-1].response_ids == sampled
        assert state(stack) == ("waiting", None)


async def test_a_reply_past_its_end_shows_where_it_would_have_ended(stack: Stack) -> None:
    stack.say("one")
    end = stack.tokenizer.decode([stack.tokenizer.eos_token_id])
    reply = await ask(stack, ignore_eos=True, skip_special_tokens=False, max_tokens=2 * (len(ids_of(stack, "one")) + 1))
    assert reply.choices[0].message.content == f"one{end}one{end}"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"ignore_eos": "yes"}, "ignore_eos"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 1.5}, "min_tokens"),
        ({"min_tokens": True}, "min_tokens"),
        ({"min_tokens": 4, "max_tokens": 3}, "min_tokens"),
        ({"min_tokens": CONTEXT_LENGTH}, "min_tokens"),
        ({"min_tokens": 10**30}, "min_tokens"),
        ({"min_tokens": 1, "response_format": SCHEMA}, "min_tokens"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": ["5"]}, "stop_token_ids"),
        ({"stop_token_ids": [True]}, "stop_token_ids"),
        ({"stop_token_ids": [10**9]}, "stop_token_ids"),
        ({"stop_token_ids": [1], "ignore_eos": True}, "stop_token_ids"),
        ({"skip_special_tokens": "no"}, "skip_special_tokens"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_value_that_cannot_be_used_is_a_400_that_names_it(
    stack: Stack, change: dict[str, Any], param: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await stack.client.chat.completions.create(model="any", messages=USER, extra_body=change, stream=stream)
    assert (caught.value.status_code, caught.value.param) == (400, param)
    assert caught.value.type == "invalid_request_error"
    assert stack.engine.requests == []


def test_the_ends_of_the_vocabulary_are_tokens(tokenizer: Any) -> None:
    vocabulary, config = Vocabulary(tokenizer), RuntimeConfig(tokenizer="any")

    def plan(token: int) -> Any:
        request, _ = parse_request(json.dumps({"messages": USER, "stop_token_ids": [token]}).encode())
        return plan_sampling(request, config, 100, vocabulary=vocabulary)

    assert plan(0).parameters["stop_token_ids"] == [0]
    assert plan(len(tokenizer) - 1).parameters["stop_token_ids"] == [len(tokenizer) - 1]
    with pytest.raises(ApiError, match=f"there is no token {len(tokenizer)}; the model has tokens 0 to"):
        plan(len(tokenizer))


async def test_an_earlier_reason_stays(start: Starter) -> None:
    stack = await start(eval_mode=True)
    stack.say("one two")
    await ask(stack, min_tokens=1, stop_token_ids=ids_of(stack, "one")[:1])
    assert state(stack) == ("excluded", "evaluation")


tokens = st.lists(st.integers(0, 9), max_size=6)


@given(
    stops=st.sets(st.integers(0, 9)), ids=tokens, ignore=st.booleans(), least=st.integers(0, 2), stopped=st.booleans()
)
def test_every_reply_has_one_reason_or_ends_as_the_policy_does(
    stops: set[int], ids: list[int], ignore: bool, least: int, stopped: bool
) -> None:
    vocabulary: Any = SimpleNamespace(size=10, ends=frozenset({9}))
    stops = set() if ignore else stops
    body = {"messages": USER, "stop_token_ids": sorted(stops), "ignore_eos": ignore, "min_tokens": least}
    request, _ = parse_request(json.dumps(body).encode())
    plan = plan_sampling(request, RuntimeConfig(tokenizer="any"), 100, vocabulary=vocabulary)
    reached = bool(ids) and ids[-1] in stops - {9}
    expected = "min_tokens" if least else "ignore_eos" if ignore else "stop_token_ids" if reached else None
    assert exclusion(plan, ids, stopped=stopped) == (expected or ("stop" if stopped else None))
