"""One conversation by three APIs: the same prompts, ids, log-probabilities, next states and numbers for the client."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from openclaw.ledger.records import Turn
from tests.unit.gateway.conftest import Stack

CALL = (
    '<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{"name": "weather", "arguments": {"place": "Rome"}}\n</tool_call>'
)
ANSWER = "<think>\nSun.\n</think>\n\nIt is sunny."
SYSTEM, ASKED, RESULT, THANKS = "Be short.", "Weather in Rome?", "sun", "thanks"
SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
WORDS = {"name": "weather", "description": "Tells the weather."}


async def by_chat(http: httpx.AsyncClient) -> list[dict[str, int]]:
    tools = [{"type": "function", "function": {**WORDS, "parameters": SCHEMA}}]
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASKED}]
    counts = []
    for said in (
        lambda reply: {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": RESULT},
        user,
        user,
    ):
        answer = (await http.post("/v1/chat/completions", json={"messages": messages, "tools": tools})).json()
        reply = answer["choices"][0]["message"]
        messages += [reply, said(reply)]
        counts.append({"in": answer["usage"]["prompt_tokens"], "out": answer["usage"]["completion_tokens"]})
    return counts


def user(reply: Any) -> dict[str, Any]:
    return {"role": "user", "content": THANKS}


async def by_responses(http: httpx.AsyncClient) -> list[dict[str, int]]:
    tools = [{"type": "function", **WORDS, "parameters": SCHEMA}]
    items: list[Any] = [{"role": "user", "content": ASKED}]
    counts = []
    for said in (
        lambda reply: {"type": "function_call_output", "call_id": reply[-1]["call_id"], "output": RESULT},
        user,
        user,
    ):
        body = {"input": items, "tools": tools, "instructions": SYSTEM, "store": False}
        answer = (await http.post("/v1/responses", json=body)).json()
        items += [*answer["output"], said(answer["output"])]
        counts.append({"in": answer["usage"]["input_tokens"], "out": answer["usage"]["output_tokens"]})
    return counts


async def by_messages(http: httpx.AsyncClient) -> list[dict[str, int]]:
    tools = [{**WORDS, "input_schema": SCHEMA}]
    messages: list[Any] = [{"role": "user", "content": ASKED}]
    counts = []

    def result(reply: Any) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": reply[-1]["id"], "content": RESULT}]}

    for said in (result, user, user):
        body = {"model": "m", "max_tokens": 500, "system": SYSTEM, "messages": messages, "tools": tools}
        answer = (await http.post("/v1/messages", json=body)).json()
        messages += [{"role": "assistant", "content": answer["content"]}, said(answer["content"])]
        usage = answer["usage"]
        read = usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
        counts.append({"in": read, "out": usage["output_tokens"]})
    return counts


def next_words(turn: Turn) -> list[tuple[str, str]] | None:
    return turn.next_state and [(message["role"], json.dumps(message["content"])) for message in turn.next_state]


@pytest.mark.parametrize("door", [by_responses, by_messages])
async def test_a_conversation_is_the_same_by_every_door(stack: Stack, http: httpx.AsyncClient, door: Any) -> None:
    stack.say(CALL, ANSWER, "Bye.", CALL, ANSWER, "Bye.")
    counts = await by_chat(http)
    chat = stack.turns()
    await http.delete(f"/v1/sessions/{chat[0].session_id}")  # equal words of one owner are one conversation
    assert await door(http) == counts
    other = stack.turns()
    assert len(chat) == len(other) == 3
    assert [turn.kind for turn in other] == ["main"] * 3
    assert len({turn.session_id for turn in other}) == 1
    for mine, theirs in zip(other, chat, strict=True):
        assert mine.prompt_ids == theirs.prompt_ids
        assert mine.response_ids == theirs.response_ids
        assert mine.response_logprobs == theirs.response_logprobs
        assert mine.tools == theirs.tools
        assert next_words(mine) == next_words(theirs)
