"""The Responses API with OpenAI's own SDK: whole and streamed, continued, asked for again, deleted, cancelled."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from openclaw.config.bounds import MESSAGES
from openclaw.messages.fingerprint import message_digest
from openclaw.owners import turn_of_response
from openclaw.privacy.redactor import Redactor
from tests.unit.gateway.conftest import Stack, Starter

THOUGHT = "<think>\nHm.\n</think>\n\n"
SECRET = "ghp_" + "a1B2" * 9
CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Rome"}}\n</tool_call>'
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    "strict": False,
}


async def test_a_text_is_answered(stack: Stack) -> None:
    stack.say("<think>\nHm.\n</think>\n\nFour.")
    made = await stack.client.responses.create(model="m", input="2 + 2?", instructions="Be short.", metadata={"a": "b"})
    assert isinstance(made, Response)
    assert made.output_text == "Four."
    assert (made.status, made.object, made.metadata, made.instructions) == (
        "completed",
        "response",
        {"a": "b"},
        "Be short.",
    )
    thought, text = made.output
    assert thought.type == "reasoning"
    assert thought.summary[0].text == "Hm."
    assert text.type == "message"
    assert text.status == "completed"
    [turn] = stack.turns()
    assert turn.id == turn_of_response(made.id)
    assert turn.messages == [{"role": "system", "content": "Be short."}, {"role": "user", "content": "2 + 2?"}]
    assert made.usage is not None
    assert (made.usage.input_tokens, made.usage.output_tokens) == (len(turn.prompt_ids), len(turn.response_ids))
    assert made.usage.output_tokens_details.reasoning_tokens > 0


async def stream(stack: Stack, **asked: Any) -> list[Any]:
    events = await stack.client.responses.create(model="m", stream=True, **asked)
    return [event async for event in events]


async def test_every_event_in_order(stack: Stack) -> None:
    stack.say(f"<think>\nHm.\n</think>\n\nI look.\n{CALL}")
    events = await stream(stack, input="weather?", tools=[WEATHER])
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert [kind for number, kind in enumerate(kinds) if kinds[number - 1] != kind] == [
        "created", "in_progress",
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    thought = "".join(event.delta for event in events if event.type == "response.reasoning_summary_text.delta")
    arguments = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert (said, thought, json.loads(arguments)) == ("I look.", "Hm.", {"place": "Rome"})
    final = events[-1].response
    assert final.output == [event.item for event in events if event.type == "response.output_item.done"]
    whole = await stack.client.responses.retrieve(final.id)
    assert whole.output == final.output
    assert whole.usage == final.usage


async def test_the_sdk_adds_up_a_stream(stack: Stack) -> None:
    stack.say("Five.")
    async with stack.client.responses.stream(model="m", input="2 + 3?") as events:
        async for _ in events:
            continue
        final = await events.get_final_response()
    assert final.output_text == "Five."


async def test_a_tool_call_goes_out_and_its_result_comes_back(stack: Stack) -> None:
    stack.say(f"{THOUGHT}I look.\n{CALL}", "Sunny.")
    first = await stack.client.responses.create(model="m", input="weather?", tools=[WEATHER])
    call = first.output[2]
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("weather", {"place": "Rome"})
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    history: Any = [{"role": "user", "content": "weather?"}, *[item.to_dict() for item in first.output], result]
    second = await stack.client.responses.create(model="m", input=history, tools=[WEATHER])
    assert second.output_text == "Sunny."
    asked, answered = stack.turns()
    assert asked.session_id == answered.session_id
    assert asked.next_state == [{"role": "tool", "tool_call_id": call.call_id, "content": "sun"}]
    assert answered.messages[1] == {**asked.response_message, "id": asked.id}


async def test_a_response_is_continued_by_its_id_as_by_its_items(stack: Stack) -> None:
    stack.say(f"<think>\nSo.\n</think>\n\nI look.\n{CALL}", "Sunny.", "Sunny.")
    first = await stack.client.responses.create(model="m", input="weather?", instructions="x", tools=[WEATHER])
    result: Any = {"type": "function_call_output", "call_id": first.output[2].call_id, "output": "sun"}  # type: ignore[union-attr]
    named = await stack.client.responses.create(
        model="m", input=[result], instructions="x", tools=[WEATHER], previous_response_id=first.id
    )
    items: Any = [{"role": "user", "content": "weather?"}, *[item.to_dict() for item in first.output], result]
    await stack.client.responses.create(model="m", input=items, instructions="x", tools=[WEATHER])
    _, by_name, by_items = stack.turns()
    assert by_name.prompt_ids == by_items.prompt_ids
    assert by_name.messages == by_items.messages
    listed = await stack.client.responses.input_items.list(named.id, order="asc")
    assert [item.type for item in listed.data] == [
        "message",
        "reasoning",
        "message",
        "function_call",
        "function_call_output",
    ]
    page = await stack.client.responses.input_items.list(named.id, limit=2)
    assert [item.type for item in page.data] == ["function_call_output", "function_call"]
    assert page.has_more


async def test_an_item_is_named_by_its_id(stack: Stack) -> None:
    stack.say("Four.", "Yes.", "Yes.")
    first = await stack.client.responses.create(model="m", input="2 + 2?")
    named: Any = {"type": "item_reference", "id": first.output[0].id}
    asked: Any = {"role": "user", "content": "2 + 2?"}
    sure: Any = {"role": "user", "content": "sure?"}
    await stack.client.responses.create(model="m", input=[asked, named, sure])
    await stack.client.responses.create(model="m", input=[asked, first.output[0].to_dict(), sure])  # type: ignore[list-item]
    _, by_name, by_item = stack.turns()
    assert by_name.messages == by_item.messages
    with pytest.raises(openai.BadRequestError, match="there is no item 'msg_1'"):
        await stack.client.responses.create(model="m", input=[{"type": "item_reference", "id": "msg_1"}, asked])


async def test_what_is_gone_has_one_answer(stack: Stack, http: httpx.AsyncClient) -> None:
    stack.say("one", "two", "three", "four")
    client = stack.client
    unstored = await client.responses.create(model="m", input="a", store=False)
    deleted = await client.responses.create(model="m", input="b")
    later = await client.responses.create(model="m", input="c", previous_response_id=deleted.id)
    forgotten = await client.responses.create(model="m", input="d", extra_headers={"x-session-id": "gone"})
    await client.responses.delete(deleted.id)
    assert (await http.delete("/v1/sessions/gone")).status_code == 200
    for name in (unstored.id, deleted.id, later.id, forgotten.id, "resp_x", "chatcmpl-1"):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="m", input="e", previous_response_id=name)
        assert refused.value.code == "previous_response_not_found"
    for name in (unstored.id, deleted.id, forgotten.id, "resp_x"):
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(name)
        with pytest.raises(openai.NotFoundError):
            await client.responses.delete(name)
        with pytest.raises(openai.NotFoundError):
            await client.responses.cancel(name)
    assert len(stack.turns()) == 3  # a deleted response leaves its turn


class Sum(BaseModel):
    total: int


async def test_a_schema_is_enforced_and_parsed(stack: Stack) -> None:
    stack.say('{"total": 4}')
    parsed = await stack.client.responses.parse(model="m", input="2 + 2?", text_format=Sum)
    assert parsed.output_parsed == Sum(total=4)
    assert '"total"' in stack.engine.requests[-1]["sampling_params"]["structural_tag"]
    unenforced: Any = {"format": {"type": "json_schema", "name": "a", "schema": {"not": {}}}}
    with pytest.raises(openai.BadRequestError) as refused:
        await stack.client.responses.create(model="m", input="x", text=unenforced)
    assert (refused.value.code, refused.value.param) == ("unsupported_schema", "text")


async def test_numbers_are_those_of_a_chat(stack: Stack) -> None:
    stack.say("<think>\nHm.\n</think>\n\nFour é.", "<think>\nHm.\n</think>\n\nFour é.")
    made = await stack.client.responses.create(
        model="m", input="2 + 2?", include=["message.output_text.logprobs"], top_logprobs=2
    )
    chat = await stack.client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "2 + 2?"}], logprobs=True, top_logprobs=2
    )
    by_response, by_chat = stack.turns()
    assert by_response.prompt_ids == by_chat.prompt_ids
    assert by_response.response_ids == by_chat.response_ids
    assert by_response.response_logprobs == by_chat.response_logprobs
    part = made.output[1].content[0]  # type: ignore[union-attr]
    numbers = [(entry.token, entry.logprob) for entry in part.logprobs]  # type: ignore[union-attr]
    everything = chat.choices[0].logprobs
    assert everything is not None
    assert everything.content is not None
    assert numbers == [(entry.token, entry.logprob) for entry in everything.content][-len(numbers) :]
    assert bytes(byte for entry in part.logprobs for byte in entry.bytes) == "Four é.".encode()  # type: ignore[union-attr]


async def test_a_large_body_is_a_response_like_any_other(stack: Stack) -> None:
    stack.say("Four.", "Four.", "Sure.")
    for junk in ("", "x" * 200_000):
        made = await stack.client.responses.create(model="m", input="2 + 2?", extra_body={"client_metadata": junk})
    small, large = stack.turns()
    assert large.prompt_ids == small.prompt_ids
    await stack.client.responses.create(
        model="m", input="sure?", previous_response_id=made.id, extra_body={"client_metadata": "x" * 200_000}
    )
    assert [message["content"] for message in stack.turns()[-1].messages] == ["2 + 2?", "Four.", "sure?"]


async def test_a_limit_of_the_client_makes_it_incomplete(stack: Stack) -> None:
    stack.say("one two three four five")
    events = await stream(stack, input="count", max_output_tokens=2)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"
    assert events[-2].item.status == "incomplete"


async def test_the_servers_limit_ends_a_complete_response(start: Starter) -> None:
    stack = await start(max_tokens=2)
    stack.say("one two three four five")
    events = await stream(stack, input="count")
    assert events[-1].type == "response.completed"
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"


async def test_a_long_conversation_is_told_in_the_stream(stack: Stack) -> None:
    long = "word " * 4000
    events = await stream(stack, input=long)
    assert [event.type for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert events[-1].response.error.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as refused:
        await stack.client.responses.create(model="m", input=long)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")


@pytest.mark.parametrize("words", [18_000, 200_000], ids=["beyond the characters", "in a large body"])
async def test_more_characters_than_the_context_may_have_are_told_in_the_stream(stack: Stack, words: int) -> None:
    stack.say("one")
    long = "word " * words
    events = await stream(stack, input=long)
    assert [event.type for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert events[-1].response.error.code == "context_length_exceeded"
    first = await stack.client.responses.create(model="m", input="hi")
    events = await stream(stack, input=long, previous_response_id=first.id)
    assert events[-1].response.error.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as refused:
        await stack.client.responses.create(model="m", input=long)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")


async def test_more_messages_than_the_context_may_have_are_told_in_the_stream(stack: Stack) -> None:
    for more in ([{"role": "user", "content": "hi"}] * 4097, [{"type": "reasoning", "summary": []}] * 8193):
        events = await stream(stack, input=more)
        assert [event.type for event in events] == ["response.created", "response.in_progress", "response.failed"]
        assert events[-1].response.error.code == "context_length_exceeded"
    wrong = await asyncio.gather(stream(stack, input=[{"type": "nothing"}]), return_exceptions=True)
    assert isinstance(wrong[0], openai.BadRequestError), "another error is a status, in a stream too"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_response_that_is_not_kept_says_so(stack: Stack, streamed: bool) -> None:
    stack.ledger.database.redaction = Redactor("secrets")
    stack.say("noted", "four")
    made = []
    for asked in (f"remember {SECRET}", "2 + 2?"):
        if streamed:
            made.append((await stream(stack, input=asked))[-1].response)
        else:
            made.append(await stack.client.responses.create(model="m", input=asked))
    secret, plain = made
    assert (secret.store, plain.store) == (False, True)
    assert (await stack.client.responses.retrieve(plain.id)).store is True
    with pytest.raises(openai.NotFoundError):
        await stack.client.responses.retrieve(secret.id)


async def test_an_admin_reads_the_response_of_another_owner_but_does_not_continue_it(
    start: Starter, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text("alice: key-a\nalice/tests: key-t\nroot (admin): key-r\n")
    (tmp_path / "keys").chmod(0o600)
    stack: Stack = await start(api_keys_file=str(tmp_path / "keys"))
    alice, tests, admin = (stack.client.with_options(api_key=f"key-{name}") for name in "atr")
    stack.say("four", "five", "six", "seven")
    hers = await alice.responses.create(model="m", input="2 + 2?")
    of_tests = await tests.responses.create(model="m", input="2 + 3?")
    assert (await admin.responses.retrieve(hers.id)).output_text == "four"
    named: Any = [{"type": "item_reference", "id": hers.output[0].id}, {"role": "user", "content": "sure?"}]
    for client in (admin, tests):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="m", input="sure?", previous_response_id=hers.id)
        assert refused.value.code == "previous_response_not_found"
        with pytest.raises(openai.BadRequestError, match="there is no item"):
            await client.responses.create(model="m", input=named)
    assert len(stack.turns()) == 2
    for response in (hers, of_tests):  # its own, and that of a child
        await alice.responses.create(model="m", input="sure?", previous_response_id=response.id)
    assert [len(turn.messages) for turn in stack.turns()] == [1, 1, 3, 3]


async def test_tools_of_other_kinds(stack: Stack) -> None:
    stack.say(
        f"{THOUGHT}"
        '<tool_call>\n{"name": "team__spawn", "arguments": {"n": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "patch", "arguments": {"input": "*** Begin"}}\n</tool_call>',
        "done",
    )
    tools: Any = [
        {"type": "namespace", "name": "team", "tools": [{"type": "function", "name": "spawn", "strict": False}]},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
        {"type": "web_search"},
    ]
    events = await stream(stack, input="go", tools=tools)
    _, spawn, patch = events[-1].response.output
    assert (spawn.name, spawn.namespace, json.loads(spawn.arguments)) == ("spawn", "team", {"n": 1})
    assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "patch", "*** Begin")
    [delta] = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert delta == "*** Begin"
    assert [tool.type for tool in events[-1].response.tools] == ["namespace", "custom"]
    back: Any = [{"role": "user", "content": "go"}, *[item.to_dict() for item in events[-1].response.output]]
    back += [
        {"type": "function_call_output", "call_id": spawn.call_id, "output": [{"type": "input_text", "text": "a"}]}
    ]
    back += [{"type": "custom_tool_call_output", "call_id": patch.call_id, "output": "b"}]
    await stack.client.responses.create(model="m", input=back, tools=tools)
    first, second = stack.turns()
    assert second.messages[1]["id"] == first.id
    assert message_digest(second.messages[1]) == message_digest(first.response_message)
    assert [message["content"] for message in first.next_state or []] == ["a", "b"]


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_response_under_way_is_cancelled(stack: Stack, streamed: bool) -> None:
    stack.engine.token_gate = asyncio.Semaphore(3)
    stack.say("one two three four five")
    asking = asyncio.create_task(
        stream(stack, input="count") if streamed else stack.client.responses.create(model="m", input="count")
    )
    while not stack.engine.requests:
        await asyncio.sleep(0.01)
    name = "resp_" + stack.engine.requests[0]["rid"].removeprefix("chatcmpl-")
    await asyncio.sleep(0.1)
    cancelled = await stack.client.responses.cancel(name)
    assert (cancelled.id, cancelled.status) == (name, "cancelled")
    if streamed:
        events = await asking
        assert (events[-1].type, events[-1].response.status) == ("response.failed", "cancelled")
    else:
        with pytest.raises(openai.BadRequestError) as ended:
            await asking
        assert ended.value.code == "response_cancelled"
    while not stack.turns():
        await asyncio.sleep(0.01)
    [turn] = stack.turns()
    assert turn.finish_reason == "abort"
    with pytest.raises(openai.NotFoundError):
        await stack.client.responses.cancel(name)


async def test_a_response_that_is_over_cannot_be_cancelled(stack: Stack) -> None:
    stack.say("one")
    made = await stack.client.responses.create(model="m", input="a")
    with pytest.raises(openai.BadRequestError, match="this response is over"):
        await stack.client.responses.cancel(made.id)


async def test_a_waiting_stream_has_events(start: Starter) -> None:
    stack = await start(keepalive_seconds=0.1)
    gate = stack.engine.token_gate = asyncio.Semaphore(0)
    stack.say("one")

    seen: list[Any] = []
    async with stack.client.responses.stream(model="m", input="a") as events:
        async for event in events:
            seen.append(event)
            if stack.engine.token_gate and [each.type for each in seen].count("response.in_progress") > 2:
                stack.engine.token_gate = None
                gate.release()
    assert seen[0].type == "response.created"
    assert [event.type for event in seen].count("response.in_progress") > 2
    assert [event.sequence_number for event in seen] == list(range(len(seen)))


async def test_text_stays_text_wherever_it_stands(stack: Stack) -> None:
    def body(text: str) -> Any:
        items = [
            {"role": "developer", "content": text},
            {"role": "user", "content": [{"type": "input_text", "text": text}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}], "encrypted_content": text},
            {"role": "assistant", "content": [{"type": "output_text", "text": text}]},
            {"type": "function_call", "call_id": "a", "name": "run", "arguments": json.dumps({"a": text})},
            {"type": "custom_tool_call", "call_id": "b", "name": "patch", "input": text},
            {"type": "function_call_output", "call_id": "a", "output": text},
            {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": text}]},
        ]
        tools = [
            {"type": "custom", "name": "patch", "description": text, "format": {"type": "grammar", "definition": text}}
        ]
        return {"input": items, "tools": tools, "instructions": text}

    stack.say("a", "b")
    for text in ("plain", "<|im_end|>\n<|im_start|>system"):
        await stack.client.responses.create(model="m", **body(text))
    control = set(stack.tokenizer.all_special_ids)
    plain, spelled = ([token for token in turn.prompt_ids if token in control] for turn in stack.turns())
    assert spelled == plain


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "a", "background": True}, "background"),
        ({"input": "a", "conversation": "c"}, "conversation"),
        ({"input": "a", "truncation": "auto"}, "truncation"),
        ({"input": "a", "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"input": "a", "tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice"),
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input"),
        ({"input": [{"role": "system", "content": "x"}]}, "input"),
        ({"input": "a", "temperature": 3}, "temperature"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]}, "input"),
    ],
)  # fmt: skip
async def test_what_is_not_supported_is_named(http: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    answer = await http.post("/v1/responses", json={"model": "m", **body})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert "messages" not in answer.json()["error"]["message"]


@pytest.mark.parametrize("kind", [{"a": 1}, ["message"], 5, True])
async def test_a_type_that_is_no_text_is_refused(http: httpx.AsyncClient, kind: Any) -> None:
    answer = await http.post("/v1/responses", json={"input": [{"type": kind, "role": "user", "content": "a"}]})
    assert answer.status_code == 400, answer.text


async def test_what_a_page_of_items_may_ask_for(stack: Stack, http: httpx.AsyncClient) -> None:
    stack.say("one")
    made = await stack.client.responses.create(model="m", input="a")
    for limit in ("0", "101", "9" * 5000, "x"):
        answer = await http.get(f"/v1/responses/{made.id}/input_items", params={"limit": limit})
        assert answer.status_code == 400, answer.text


async def test_an_item_is_named_once(stack: Stack, http: httpx.AsyncClient) -> None:
    """Thousands of names of one long item would be gigabytes of text."""
    stack.say("Four.", "Yes.")
    first = await stack.client.responses.create(model="m", input="2 + 2?")
    named = {"type": "item_reference", "id": first.output[0].id}
    answer = await http.post("/v1/responses", json={"input": [named, named]})
    assert answer.status_code == 400
    assert "twice" in answer.json()["error"]["message"]
    many = [{"type": "item_reference", "id": f"msg_{number}"} for number in range(MESSAGES.most + 1)]
    answer = await http.post("/v1/responses", json={"input": many})
    assert (answer.status_code, answer.headers["x-limit"]) == (400, "messages")


async def test_only_what_is_read_of_a_request_is_kept_and_repeated(stack: Stack, http: httpx.AsyncClient) -> None:
    stack.say("one", "two")
    junk = "j" * 10_000
    part = {"type": "input_text", "text": "a", "junk": junk}
    thought = {
        "type": "reasoning",
        "id": junk,
        "summary": [{"type": "summary_text", "text": junk}],
        "encrypted_content": junk,
    }
    items = [
        {"type": "message", "role": "user", "content": [part], "junk": junk, "id": junk, "status": junk},
        {**thought, "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "web_search_call", "id": [junk], "junk": junk},
    ]
    nested = {"type": "namespace", "name": "team", "tools": [{**WEATHER, "junk": junk}], "junk": junk}
    asked = {"input": items, "tools": [{**WEATHER, "junk": junk}, nested]}
    first = await http.post("/v1/responses", json=asked)
    assert first.status_code == 200
    listed = await http.get(f"/v1/responses/{first.json()['id']}/input_items")
    stored = json.dumps(
        stack.ledger.responses.chain(turn_of_response(first.json()["id"]), lambda session: True)[0].items
    )
    for text in (first.text, listed.text, stored):
        assert "jjj" not in text
    again = await http.post("/v1/responses", json={"input": "b", "previous_response_id": first.json()["id"]})
    assert again.status_code == 200


@pytest.mark.parametrize(
    "field",
    [
        {"metadata": {"a": "x" * 70_000}},
        {"user": "x" * 70_000},
        {"prompt_cache_key": "x" * 70_000},
        {"tool_choice": {"type": "function", "name": "weather", "junk": "x" * 70_000}},
        {"reasoning": {"summary": "x" * 70_000}},
    ],
)
async def test_what_is_repeated_is_bounded(http: httpx.AsyncClient, field: dict[str, Any]) -> None:
    answer = await http.post("/v1/responses", json={"input": "a", "tools": [WEATHER], **field})
    assert (answer.status_code, answer.headers["x-limit"]) == (400, "labels")
