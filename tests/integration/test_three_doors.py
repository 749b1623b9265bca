"""The same conversation with a call and its result through the OpenAI and Anthropic SDKs' three ways, before a real engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from openclaw.ledger.records import Turn
from slime.backends.sglang_utils.engine import SGLangEngine
from tests.helpers.live_gateway import gateway
from tests.helpers.tolerance import MODEL, tolerance

TOLERANCE = tolerance(10.0, roundings=MODEL)
SYSTEM, ASKED, RESULT, THEN = "Answer in plain words.", "What does the note say?", "Milk and bread.", "Shorter, please."
NAME, ABOUT = "read", "Read a file."
SCHEMA: Any = {
    "type": "object",
    "properties": {"path": {"enum": ["note", "list"]}},
    "required": ["path"],
    "additionalProperties": False,
}
MOST, MODEL_NAME = 200, "any"


async def by_chat(client: AsyncOpenAI, session: str) -> None:
    """Chat completions."""
    options: dict[str, Any] = {"model": MODEL_NAME, "max_tokens": MOST, "temperature": 0.0}
    options["extra_headers"] = {"X-Session-Id": session}
    options["tools"] = [
        {"type": "function", "function": {"name": NAME, "description": ABOUT, "parameters": SCHEMA}},
    ]
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASKED}]
    named: Any = {"type": "function", "function": {"name": NAME}}
    for answer in (lambda said: {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": RESULT}, None, None):
        forced = {"tool_choice": named} if answer else {}
        reply = await client.chat.completions.create(messages=messages, **options, **forced)
        said = reply.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        messages.append(answer(said) if answer else {"role": "user", "content": THEN})


async def by_responses(client: AsyncOpenAI, session: str) -> None:
    """Responses, with the whole history in ``input``."""
    options: dict[str, Any] = {"model": MODEL_NAME, "max_output_tokens": MOST, "temperature": 0.0, "store": False}
    options["extra_headers"] = {"X-Session-Id": session}
    options["tools"] = [
        {"type": "function", "name": NAME, "description": ABOUT, "parameters": SCHEMA, "strict": False},
    ]
    items: list[Any] = [{"role": "user", "content": ASKED}]
    for number in range(3):
        forced: Any = {"tool_choice": {"type": "function", "name": NAME}} if number == 0 else {}
        reply = await client.responses.create(instructions=SYSTEM, input=items, **options, **forced)
        items += [item.model_dump(exclude_none=True) for item in reply.output]
        calls = [item.call_id for item in reply.output if item.type == "function_call"]
        if calls:
            items.append({"type": "function_call_output", "call_id": calls[0], "output": RESULT})
        else:
            items.append({"role": "user", "content": THEN})


async def by_messages(client: AsyncOpenAI, session: str) -> None:
    """Messages."""
    tools: Any = [{"name": NAME, "description": ABOUT, "input_schema": SCHEMA}]
    messages: list[Any] = [{"role": "user", "content": ASKED}]
    url = str(client.base_url).removesuffix("/v1/")
    async with AsyncAnthropic(base_url=url, api_key="unused", max_retries=0) as anthropic:
        for number in range(3):
            forced: Any = {"tool_choice": {"type": "tool", "name": NAME}} if number == 0 else {}
            reply = await anthropic.messages.create(
                model=MODEL_NAME,
                max_tokens=MOST,
                extra_body={"temperature": 0.0},
                system=SYSTEM,
                tools=tools,
                messages=messages,
                extra_headers={"X-Session-Id": session},
                **forced,
            )
            messages.append({"role": "assistant", "content": [block.model_dump() for block in reply.content]})
            calls = [block.id for block in reply.content if block.type == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": call, "content": RESULT} for call in calls]
            messages.append({"role": "user", "content": results or THEN})


DOORS: dict[str, Callable[[AsyncOpenAI, str], Awaitable[None]]] = {
    "chat": by_chat,
    "responses": by_responses,
    "messages": by_messages,
}


async def test_ids_and_log_probabilities_are_the_same_by_each_door(
    engine: SGLangEngine, tiny_random_model: Path, tmp_path: Path
) -> None:
    async with gateway(engine.url(), tiny_random_model, tmp_path) as (client, ledger, _):
        for name, door in DOORS.items():
            await door(client, f"by-{name}")
    turns: dict[str, list[Turn]] = {name: [] for name in DOORS}
    for record in ledger.views.turn_records():
        (name,) = (name for name in DOORS if f"by-{name}" in record.turn.session_id)
        turns[name].append(record.turn)
    ledger.close()
    chat = turns["chat"]
    assert [len(each) for each in turns.values()] == [3, 3, 3]
    assert all(turn.response_ids for turn in chat)
    assert chat[0].finish_reason == "tool_calls"
    assert chat[1].next_state == [{"role": "user", "content": THEN}]
    for name in ("responses", "messages"):
        for one, other in zip(chat, turns[name], strict=True):
            assert one.prompt_ids == other.prompt_ids, name
            assert one.response_ids == other.response_ids, name
            assert one.response_logprobs == pytest.approx(other.response_logprobs, abs=TOLERANCE), name
            assert one.kind == other.kind == "main"
            assert (one.state, one.reason, one.next_state) == (other.state, other.reason, other.next_state), name
    # What each sent back is what the engine had sampled.
    for own in turns.values():
        for before, after in pairwise(own):
            assert str(list(before.response_ids))[1:-1] in str(list(after.prompt_ids))
