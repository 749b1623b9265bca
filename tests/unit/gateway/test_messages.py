"""The Messages API through the whole gateway, with Anthropic's own library."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.testkit.waiting import eventually
from openclaw.config.bounds import LARGE_BODY, MESSAGES
from openclaw.gateway.dialects.anthropic import PING, MessagesForm, signature_of, turn_of
from openclaw.gateway.errors import stopping
from tests.helpers.lazily import lazily
from tests.unit.gateway.conftest import CONTEXT_LENGTH, Stack, Starter

anthropic = lazily("anthropic")
USER: list[Any] = [{"role": "user", "content": "Hello?"}]
WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "Tell the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
THOUGHT = "<think>\nhm, rain\n</think>\n\n"


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=stack.url, api_key="unused", max_retries=0) as client:
        yield client


async def ask(client: anthropic.AsyncAnthropic, messages: Any, **more: Any) -> Any:
    return await client.messages.create(model="any", max_tokens=200, messages=messages, **more)


async def streamed(client: anthropic.AsyncAnthropic, messages: Any, **more: Any) -> Any:
    async with client.messages.stream(model="any", max_tokens=200, messages=messages, **more) as stream:
        async for _ in stream:
            continue
        return await stream.get_final_message()


def plain(message: Any) -> dict[str, Any]:
    return message.model_dump(exclude={"id"}, exclude_none=True)


async def test_a_text(stack: Stack, client: anthropic.AsyncAnthropic) -> None:
    stack.say("It is five.")
    message = await ask(client, USER)
    (turn,) = stack.turns()
    assert (message.id, message.type, message.role, message.model) == (turn.id, "message", "assistant", "tiny-policy")
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "It is five."}]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == len(turn.prompt_ids)
    assert message.usage.output_tokens == len(turn.response_ids)
    assert (message.usage.cache_creation_input_tokens, message.usage.cache_read_input_tokens) == (0, 3)
    assert message._request_id == turn.id


@pytest.mark.parametrize(
    ("reply", "kinds", "reason"),
    [
        ("Five.", ["text"], "end_turn"),
        (f"{THOUGHT}Five.", ["thinking", "text"], "end_turn"),
        (f"{THOUGHT}I look.\n{CALL}\n{CALL}", ["thinking", "text", "tool_use", "tool_use"], "tool_use"),
        (CALL, ["tool_use"], "tool_use"),
        ("", [], "end_turn"),
    ],
)
async def test_a_stream_gives_the_message_that_is_given_whole(
    stack: Stack, client: anthropic.AsyncAnthropic, reply: str, kinds: list[str], reason: str
) -> None:
    stack.engine.chunk_tokens = 1
    stack.say(reply, reply)
    whole = await ask(client, USER, tools=[WEATHER])
    parts = await streamed(client, USER, tools=[WEATHER])
    assert [block.type for block in whole.content] == kinds
    assert whole.stop_reason == reason
    for block in (*whole.content, *parts.content):
        if block.type == "thinking":
            assert turn_of(block.signature) in {whole.id, parts.id}
            block.signature = ""
        if block.type == "tool_use":
            assert block.input == {"city": "Ulm"}
            block.id = ""
    assert plain(parts) == plain(whole)


async def test_events_have_names_and_close_what_they_open(stack: Stack, http: httpx.AsyncClient) -> None:
    stack.engine.chunk_tokens = 2
    stack.say(f"{THOUGHT}I look.\n{CALL}")
    body = {"model": "m", "max_tokens": 99, "stream": True, "messages": USER, "tools": [WEATHER]}
    response = await http.post("/v1/messages?beta=true", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [part.split("\n") for part in response.text.strip().split("\n\n")]
    names = [name.removeprefix("event: ") for name, _ in events]
    data = [json.loads(line.removeprefix("data: ")) for _, line in events]
    assert names == [each["type"] for each in data]
    assert (names[0], names[-2:]) == ("message_start", ["message_delta", "message_stop"])
    opened = -1
    for name, each in zip(names[1:-2], data[1:-2], strict=True):
        if name == "content_block_start":
            opened += 1
        assert each["index"] == opened
    starts, ends = names.count("content_block_start"), names.count("content_block_stop")
    assert starts == ends == opened + 1 == 3
    before_end = [first["delta"]["type"] for first, last in pairwise(data) if last["type"] == "content_block_stop"]
    assert before_end == ["signature_delta", "text_delta", "input_json_delta"]


async def test_a_conversation_with_tools_and_thoughts_links_its_turns(
    stack: Stack, client: anthropic.AsyncAnthropic
) -> None:
    stack.say(f"{THOUGHT}I look.\n{CALL}", f"{THOUGHT}It rains.", "Bye.")
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Rain in Ulm?"}]}]
    first = await streamed(client, messages, tools=[WEATHER], system="Be brief.")
    call = next(block for block in first.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain"}]}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = await ask(client, messages, tools=[WEATHER], system=[{"type": "text", "text": "Be brief."}])
    messages += [{"role": "assistant", "content": second.content}, {"role": "user", "content": "Thanks."}]
    await ask(client, messages, tools=[WEATHER], system="Be brief.")
    turns = stack.turns()
    assert [turn.next_state for turn in turns] == [
        [{"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "rain"}]}],
        [{"role": "user", "content": "Thanks."}],
        None,
    ]
    assert len({turn.session_id for turn in turns}) == 1
    assert turns[2].messages[-2]["reasoning_content"] == "hm, rain"


async def test_a_signature_links_a_reply_whose_words_changed(stack: Stack, client: anthropic.AsyncAnthropic) -> None:
    stack.say(f"{THOUGHT}It rains all day.", "Good.")
    first = await ask(client, USER)
    thought = {"type": "thinking", "thinking": "", "signature": first.content[0].signature}
    changed = [*USER, {"role": "assistant", "content": [thought, {"type": "text", "text": "rain"}]}]
    await ask(client, [*changed, {"role": "user", "content": "Really?"}])
    assert stack.turns()[0].next_state == [{"role": "user", "content": "Really?"}]


async def test_the_same_conversation_has_the_same_ids_by_both_doors(
    stack: Stack, client: anthropic.AsyncAnthropic
) -> None:
    replies = (f"{THOUGHT}I look.\n{CALL}", "It rains.")
    function = {"name": "weather", "description": "Tell the weather.", "parameters": WEATHER["input_schema"]}
    tools: list[Any] = [{"type": "function", "function": function}]
    stack.say(*replies)
    first = await ask(client, USER, system="Be brief.", tools=[WEATHER])
    call = next(block for block in first.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    more = [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    await ask(client, [*USER, *more], system="Be brief.", tools=[WEATHER])
    stack.say(*replies)
    chat: list[Any] = [{"role": "system", "content": "Be brief."}, *USER]
    answer = (await stack.client.chat.completions.create(model="any", messages=chat, tools=tools)).choices[0].message
    asked = answer.tool_calls or []
    chat += [answer.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": asked[0].id, "content": "rain"}]
    await stack.client.chat.completions.create(model="any", messages=chat, tools=tools)
    theirs, ours = stack.turns()[:2], stack.turns()[2:]
    for name in ("prompt_ids", "response_ids", "response_logprobs", "kind", "temperature", "top_p", "tools"):
        assert [getattr(turn, name) for turn in theirs] == [getattr(turn, name) for turn in ours], name


async def test_no_id_of_another_owner_links_a_message(start: Starter, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("anna:sk-anna-0123456789\nben:sk-ben-0123456789\n")
    keys.chmod(0o600)
    stack: Stack = await start(api_keys_file=str(keys))
    stack.say(f"{THOUGHT}I look.\n{CALL}", "It rains.")
    anna, ben = (
        anthropic.AsyncAnthropic(base_url=stack.url, api_key=f"sk-{name}-0123456789", max_retries=0)
        for name in ("anna", "ben")
    )
    first = await ask(anna, USER, tools=[WEATHER])
    call = next(block for block in first.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    more = [*USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    await ask(ben, more, tools=[WEATHER], extra_headers={"x-claude-code-session-id": stack.turns()[0].session_id})
    await asyncio.gather(anna.close(), ben.close())
    of_anna, of_ben = stack.turns()
    assert of_anna.next_state is None
    assert [turn.session_id.split(":")[0] for turn in (of_anna, of_ben)] == ["@anna", "@ben"]
    assert stack.metric("openclaw_replayed_replies_total", ids="sampled") == 0


async def test_a_command_is_answered_in_this_form(start: Starter) -> None:
    stack: Stack = await start(commands=True)
    stack.say("Five.")
    async with anthropic.AsyncAnthropic(base_url=stack.url, api_key="unused", max_retries=0) as client:
        first = await ask(client, USER)
        said = [*USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": "/rl good"}]
        whole, parts = await ask(client, said), await streamed(client, said)
    assert whole.content[0].text == parts.content[0].text
    assert (whole.stop_reason, whole.usage.output_tokens) == ("end_turn", 0)
    assert len(stack.engine.requests) == len(stack.turns()) == 1


async def test_why_a_message_ends(stack: Stack, client: anthropic.AsyncAnthropic) -> None:
    stack.say("one two STOP three", "one two three four five")
    stopped = await ask(client, USER, stop_sequences=["nothing", "STOP"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "STOP")
    assert stopped.content[0].text == "one two "
    cut = await client.messages.create(model="any", max_tokens=2, messages=USER)
    assert cut.stop_reason == "max_tokens"


async def test_the_length_is_cut_to_what_fits(stack: Stack, client: anthropic.AsyncAnthropic) -> None:
    stack.say("Five.")
    await client.messages.create(model="any", max_tokens=20_000, messages=USER)
    (turn,) = stack.turns()
    assert stack.engine.requests[-1]["sampling_params"]["max_new_tokens"] == CONTEXT_LENGTH - len(turn.prompt_ids)


async def test_what_is_sampled(stack: Stack, client: anthropic.AsyncAnthropic) -> None:
    stack.say("Five.", "Six.")
    await ask(client, USER, extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 5})
    asked = stack.engine.requests[-1]["sampling_params"]
    assert (asked["temperature"], asked["top_p"], asked["top_k"]) == (0.5, 0.9, 5)
    await ask(
        client, USER, extra_body={"context_management": {"edits": []}, "mcp_servers": [], "metadata": {"user_id": "u"}}
    )
    assert stack.turns()[1].reason is None


@pytest.mark.parametrize(
    ("choice", "asks"),
    [
        ({"type": "auto"}, False),
        ({"type": "none"}, False),
        ({"type": "any"}, True),
        ({"type": "tool", "name": "weather"}, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, True),
    ],
)
async def test_tool_choice(stack: Stack, client: anthropic.AsyncAnthropic, choice: Any, asks: bool) -> None:
    stack.say(CALL)
    await ask(client, USER, tools=[WEATHER], tool_choice=choice)
    assert ("structural_tag" in stack.engine.requests[-1]["sampling_params"]) is asks
    assert (stack.turns()[0].tools is None) is (choice["type"] == "none")


async def test_structured_output_is_enforced_or_refused(stack: Stack, client: anthropic.AsyncAnthropic) -> None:
    stack.say('{"title": "Rain"}')
    schema: dict[str, Any] = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
    await ask(
        client,
        USER,
        extra_body={"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": schema}}},
    )
    assert '"title"' in stack.engine.requests[-1]["sampling_params"]["structural_tag"]
    with pytest.raises(anthropic.BadRequestError) as caught:
        await ask(client, USER, extra_body={"output_format": {"type": "json_schema", "schema": {"not": {}}}})
    assert error_of(caught.value)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("thinking", "keywords"),
    [
        (None, {}),
        ({"type": "adaptive"}, {}),
        ({"type": "enabled", "budget_tokens": 1024}, {"enable_thinking": True}),
        ({"type": "disabled"}, {"enable_thinking": False}),
    ],
)
async def test_thinking(stack: Stack, http: httpx.AsyncClient, thinking: Any, keywords: dict[str, bool]) -> None:
    stack.say("Five.")
    body = {"max_tokens": 99, "messages": USER, "thinking": thinking}
    assert (await http.post("/v1/messages", json=body)).status_code == 200
    assert stack.turns()[0].chat_template_kwargs == keywords


def error_of(error: anthropic.APIStatusError) -> dict[str, str]:
    body: Any = error.body
    assert body.keys() == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"] == error.request_id
    return body["error"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [*USER, {"role": "assistant", "content": "It is"}]}, "prefill"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "tool_result"),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]}, "thinking"),
        ({"messages": [{"role": "system", "content": "x"}]}, "user message"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}, "tools": [{"name": "x y"}]}, "name"),
        ({"stop_sequences": [""]}, "stop"),
        ({"temperature": 9}, "temperature"),
    ],
)
async def test_what_is_refused(client: anthropic.AsyncAnthropic, body: dict[str, Any], said: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        await client.messages.create(model="any", max_tokens=9, messages=USER, extra_body=body)
    error = error_of(caught.value)
    assert error["type"] == "invalid_request_error"
    assert said in error["message"]


async def test_a_prompt_that_is_too_long(stack: Stack, client: anthropic.AsyncAnthropic) -> None:
    for words in (1500, 100_000):
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 2048 maximum"):
            await ask(client, [{"role": "user", "content": "a b " * words}])
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        await ask(client, [{"role": "user", "content": "a b " * LARGE_BODY.most}])
    many = MESSAGES.most + 1
    with pytest.raises(anthropic.BadRequestError, match=f"prompt is too long: {many} messages > {many - 1} maximum"):
        await ask(client, [{"role": ("user", "assistant")[n % 2], "content": "a"} for n in range(many)])


async def test_counted_tokens_are_those_of_the_prompt(stack: Stack, client: anthropic.AsyncAnthropic) -> None:
    stack.say("Five.")
    asked: dict[str, Any] = {"messages": USER, "system": "Be brief.", "tools": [WEATHER]}
    count = await client.messages.count_tokens(model="any", **asked)
    await ask(client, **asked)
    assert count.input_tokens == len(stack.turns()[0].prompt_ids)
    long = await client.messages.count_tokens(model="any", messages=[{"role": "user", "content": "a b " * 1500}])
    assert long.input_tokens > CONTEXT_LENGTH
    with pytest.raises(anthropic.BadRequestError):
        await client.messages.count_tokens(model="any", messages=[])
    assert len(stack.turns()) == 1


async def test_errors_that_no_dialect_makes(start: Starter) -> None:
    stack: Stack = await start(api_key="secret", engine_wait_seconds=0.0)
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        body = {"max_tokens": 9, "messages": USER}
        refused = await http.post("/v1/messages", json=body)
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        for headers in ({"x-api-key": "secret"}, {"authorization": "Bearer secret"}):
            stack.engine.fail_with.append(503)
            away = await http.post("/v1/messages", json=body, headers=headers)
            assert (away.status_code, away.json()["error"]["type"]) == (503, "overloaded_error")
            assert away.headers["retry-after"] == "1"
            assert away.json()["request_id"] == away.headers["request-id"]
        nowhere = await http.get("/v1/messages/batches", headers={"x-api-key": "secret"})
        assert (nowhere.status_code, nowhere.json()["error"]["type"]) == (404, "not_found_error")
        assert (await http.head("/api/hello", headers={"x-api-key": "secret"})).status_code == 404
        text = await http.post("/v1/messages", content=b"{", headers={"x-api-key": "secret"})
        assert (text.status_code, text.json()["error"]["type"]) == (415, "invalid_request_error")


async def test_a_silent_stream_gets_pings(start: Starter) -> None:
    stack: Stack = await start(keepalive_seconds=0.02)
    stack.say("Five.")
    stack.engine.pause()
    body = {"max_tokens": 9, "messages": USER, "stream": True}
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, timeout=60) as http:
        async with http.stream("POST", "/v1/messages", json=body) as response:
            parts = response.aiter_raw()
            held = await anext(parts)
            stack.engine.resume("2")
            rest = b"".join([part async for part in parts])
    assert held == PING * held.count(PING)
    assert rest.endswith(b'data: {"type":"message_stop"}\n\n')
    stack.say("Five.")
    stack.engine.pause()
    async with anthropic.AsyncAnthropic(base_url=stack.url, api_key="unused", max_retries=0) as client:
        reading = asyncio.create_task(streamed(client, USER))
        await stack.engine.wait_for(lambda: len(stack.engine.requests) == 2)
        await asyncio.sleep(0.06)
        stack.engine.resume("2")
        assert (await reading).content[0].text == "Five."


def test_a_failed_stream_ends_in_an_error() -> None:
    name, data = MessagesForm().failure(stopping()).decode().strip().split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "overloaded_error"


async def test_a_client_that_leaves_leaves_an_aborted_turn(stack: Stack, http: httpx.AsyncClient) -> None:
    stack.engine.token_gate = asyncio.Semaphore(2)
    stack.say("one two three four five six seven eight")
    body = {"max_tokens": 99, "messages": USER, "stream": True}
    async with http.stream("POST", "/v1/messages", json=body) as response:
        async for _ in response.aiter_bytes():
            break
    await stack.engine.wait_for(lambda: bool(stack.engine.aborted))
    await eventually(lambda: [turn.finish_reason for turn in stack.turns()], ["abort"])


async def test_a_large_body_is_read_elsewhere(stack: Stack) -> None:
    stack.say("b")
    body = {"max_tokens": 4, "messages": USER, "metadata": {"user_id": "x" * LARGE_BODY.most}, "stop_sequences": ["Z"]}
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, timeout=60) as http:
        assert (await http.post("/v1/messages", json=body)).json()["content"] == [{"type": "text", "text": "b"}]
    assert stack.engine.requests[-1]["sampling_params"]["stop"] == ["Z"]


def test_only_a_signature_of_ours_names_a_turn() -> None:
    turn = f"chatcmpl-{'a' * 32}"
    assert turn_of(signature_of(turn)) == turn
    for other in ("", "c2lnLXByb2Jl", "x", turn, signature_of("chatcmpl-x"), "é"):
        assert turn_of(other) == ""


async def test_many_at_once(stack: Stack, client: anthropic.AsyncAnthropic) -> None:
    stack.say(*["Five."] * 8)
    messages = await asyncio.gather(*(streamed(client, USER) for _ in range(8)))
    assert {message.content[0].text for message in messages} == {"Five."}
    assert len({message.id for message in messages}) == 8


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"stop_sequences": ["x"] * 17}, "stop_sequences: "),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "output_config.format"),
        ({"tools": [{"name": "x y"}]}, "tools.0.name: "),
    ],
)
async def test_a_refusal_names_this_apis_parameter(
    client: anthropic.AsyncAnthropic, body: dict[str, Any], said: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        await client.messages.create(model="any", max_tokens=9, messages=USER, extra_body=body)
    message = error_of(caught.value)["message"]
    assert message.startswith(said), message
    assert "response_format" not in message
