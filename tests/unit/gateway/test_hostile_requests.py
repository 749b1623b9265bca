"""One request must not harm another: what is too large, too deep or unknown is refused or dropped."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundwork.chat_messages import MAX_ARGUMENTS_DEPTH, nesting, read_arguments
from openclaw.config.bounds import FEEDBACK_BODY, LARGE_BODY, PROMPT_CHARACTERS
from openclaw.gateway.chat import LARGE_PROMPT
from openclaw.gateway.errors import ApiError
from openclaw.gateway.schema import parse_request
from openclaw.messages import classify
from openclaw.messages.fingerprint import read_history
from openclaw.sessions.earlier_turns import Asking, last_reply, relate
from openclaw.sessions.manner import Manner, PassedOver
from openclaw.sessions.table import Node
from tests.unit.gateway.conftest import CONTEXT_LENGTH, PATIENCE, Stack, Starter

pytestmark = pytest.mark.slow

USER: Any = {"role": "user", "content": "Hello?"}
PATH = "/v1/chat/completions"
MAX_CHARACTERS = CONTEXT_LENGTH * PROMPT_CHARACTERS.most
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


def calling(arguments: str) -> list[Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": arguments}}
    return [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        "[" * 100_000,
        "[" * 300 + "]" * 300,
        '{"a":' * 5_000 + "1" + "}" * 5_000,
        "9" * 20_000,
        "NaN",
        '{"a": Infinity, "b": 1e999}',
        '{"a": 1, "a": 2}',
        '"\\ud800"',
        "\0",
    ],
)
async def test_any_arguments_are_answered(http: httpx.AsyncClient, stack: Stack, arguments: str) -> None:
    stack.say("one")
    answer = await http.post(PATH, json={"messages": calling(arguments[: MAX_CHARACTERS // 2]), "tools": [TOOL]})
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_arguments_that_nest_too_deep_stay_text() -> None:
    deep = "[" * (MAX_ARGUMENTS_DEPTH + 1) + "]" * (MAX_ARGUMENTS_DEPTH + 1)
    assert read_arguments(deep) == deep
    assert read_arguments(deep[1:-1]) != deep[1:-1]
    assert read_arguments('{"a": ' + json.dumps("[" * 500) + "}") == {"a": "[" * 500}
    read_history(calling("[" * 1_000_000))


JSON = st.recursive(
    st.none() | st.integers() | st.text(alphabet='[]{}"\\a\nü', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='[{"', max_size=3), inner, max_size=3),
)


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(JSON, st.integers(0, 4))
def test_nesting_is_counted_outside_of_strings(value: Any, most: int) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert nesting(text.encode(), most) == min(depth(value), most + 1)


async def test_unknown_fields_of_messages_are_not_kept(http: httpx.AsyncClient, stack: Stack) -> None:
    stack.say("one")
    junk = {"cache_control": {"type": "ephemeral"}, "junk": "x" * 10_000}
    call = {"id": "c1", "type": "function", "index": 0, "function": {"name": "read", "arguments": "{}", **junk}, **junk}
    sent = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief.", **junk}], **junk},
        {**USER, "name": "ann", **junk},
        {
            "role": "assistant",
            "content": "Yes.",
            "reasoning_content": "hm",
            "tool_calls": [call],
            "id": "m1",
            "refusal": None,
        },
        {"role": "tool", "tool_call_id": "c1", "content": "done", **junk},
        {**USER, "id": 5},
    ]
    tool = {**TOOL, "function": {**TOOL["function"], "description": "Reads.", **junk}, **junk}
    answer = await http.post(PATH, json={"messages": sent, "tools": [tool], "metadata": junk})
    assert answer.status_code == 200
    (turn,) = stack.turns()
    kept_call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    assert turn.messages == [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {**USER, "name": "ann"},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "hm", "tool_calls": [kept_call], "id": "m1"},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
        USER,
    ]
    assert turn.tools == [{**TOOL, "function": {**TOOL["function"], "description": "Reads."}}]


async def test_a_large_unknown_field_is_neither_stored_nor_rendered(http: httpx.AsyncClient, stack: Stack) -> None:
    stack.say("one", "one")
    for junk in ("x", "x" * (2 * LARGE_BODY.most)):
        assert (await http.post(PATH, json={"messages": [{**USER, "junk": junk}]})).status_code == 200
    small, large = stack.turns()
    assert small.prompt_ids == large.prompt_ids
    assert small.messages == large.messages == [USER]


@pytest.mark.parametrize(
    ("messages", "more"),
    [
        ([{"role": "user", "content": "x" * MAX_CHARACTERS}], {}),
        ([{"role": "user", "content": [{"type": "text", "text": "x" * (MAX_CHARACTERS // 2)}] * 2}], {}),
        (calling("x" * MAX_CHARACTERS), {}),
        ([USER, {"role": "assistant", "content": "", "reasoning_content": "x" * MAX_CHARACTERS}], {}),
        ([USER], {"tools": [{**TOOL, "function": {"name": "a", "description": "x" * MAX_CHARACTERS}}]}),
        ([{"role": "user", "content": "x" * (40 * MAX_CHARACTERS)}], {}),
    ],
)
async def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenised(
    http: httpx.AsyncClient, stack: Stack, monkeypatch: pytest.MonkeyPatch, messages: Any, more: Any
) -> None:
    monkeypatch.setattr(stack.service._renderer, "prepare", None)
    answer = await http.post(PATH, json={"messages": messages, **more})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert stack.metric("openclaw_limit_hits_total", limit=PROMPT_CHARACTERS.name) == 1


async def test_a_large_prompt_is_tokenised_beside_the_others(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = await start(context_length=16 * CONTEXT_LENGTH)
    stack.say("one")
    began, may_end = threading.Event(), threading.Event()

    def slow(*args: Any) -> list[int]:
        began.set()
        may_end.wait(PATIENCE)
        return [1]

    monkeypatch.setattr(stack.service._large_renderer, "render", slow)
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, timeout=PATIENCE) as http:
        large = {"messages": [{"role": "user", "content": "x" * (LARGE_PROMPT + 1)}], "tools": [TOOL]}
        sent = asyncio.create_task(http.post(PATH, json=large))
        await asyncio.to_thread(began.wait, PATIENCE)
        assert (await http.post(PATH, json={"messages": [USER], "tools": [TOOL]})).status_code == 200
        assert not sent.done()
        stack.say("two")
        may_end.set()
        assert (await sent).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"x" * 1_000_000: 1},
        {"tool_choice": {"type": "function", "function": {"name": "x" * 1_000_000}}, "tools": [TOOL]},
        {"model": "x" * 1_000_000},
        {"logit_bias": {"x" * 1_000_000: "y"}},
    ],
)
def test_a_refusal_does_not_repeat_a_long_text(body: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        parse_request(json.dumps({"messages": [USER], **body}).encode())
    assert len(caught.value.message) < 2_000


async def test_the_engine_never_sees_a_top_k_that_ends_it(http: httpx.AsyncClient, stack: Stack) -> None:
    stack.say("one")
    answer = await http.post(PATH, json={"messages": [USER], "top_k": 2147483648})
    assert answer.status_code == 200
    assert "top_k" not in stack.engine.requests[0]["sampling_params"]
    assert (await http.post(PATH, json={"messages": [USER], "repetition_penalty": 1e-300})).status_code == 400
    assert len(stack.engine.requests) == 1


def answering(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


def alternatives(width: int, depth: int) -> dict[str, Any]:
    inner = alternatives(width, depth - 1) if depth else {"type": "string"}
    return {"anyOf": [inner] * width} if depth else inner


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": [{"role": "user", "content": "word and " * 3_000_000}]}, "messages"),
        ({"stop": ["x" * 1_000_000 + str(number) for number in range(16)]}, "stop"),
        (answering(alternatives(4, 7)), "response_format"),
        (answering({"$ref": "#"}), "response_format"),
        (answering({"type": "string", "pattern": "^((a{0,1000}b){0,1000}c){0,1000}$"}), "response_format"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"logit_bias": {str(number): 1 for number in range(100_000)}}, "logit_bias"),
    ],
)
async def test_what_harmed_others_is_a_400_and_never_reaches_the_engine(
    http: httpx.AsyncClient, stack: Stack, change: dict[str, Any], param: str
) -> None:
    answer = await http.post(PATH, json={"messages": [USER], **change}, timeout=PATIENCE)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert stack.engine.requests == []
    assert stack.turns() == []


async def test_a_feedback_has_a_body_of_its_own_size(http: httpx.AsyncClient) -> None:
    body = b'{"text": "' + b"x" * FEEDBACK_BODY.most + b'"}'
    answer = await http.post("/v1/feedback", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 413


@pytest.mark.parametrize("count", [10, 1000])
def test_each_message_is_looked_at_a_few_times_only(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A thousand replies after a thousand texts of the client took the event loop for many seconds."""
    looks = 0

    def looked_at(message: dict[str, Any]) -> bool:
        nonlocal looks
        looks += 1
        return is_internal(message)

    own = {"role": "user", "content": classify.INTERNAL_CONTEXT}
    heartbeat = {"role": "user", "content": "Read HEARTBEAT.md"}
    messages = [heartbeat, *[own] * count, *[{"role": "assistant", "content": "a"}] * count, USER]
    history, waiting = read_history(messages), Node("a", "main", "waiting", b"c", b"r", b"")
    is_internal = classify.is_internal
    monkeypatch.setattr(classify, "is_internal", looked_at)
    relate(messages, history, [waiting], Asking(Manner(), PassedOver()))
    last_reply(messages, history, [waiting])
    assert 0 < looks <= 4 * len(messages)
