"""What is refused, how it is said, and what a client that leaves causes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from openclaw.gateway.errors import ApiError
from openclaw.gateway.schema import IGNORED, parse_request
from tests.unit.gateway.conftest import Stack, Starter

USER = [{"role": "user", "content": "Hello?"}]


async def post(stack: Stack, body: Any, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", **headers}
        return await client.post("/v1/chat/completions", content=content, headers=sent)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"n": 0}, "n"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": []}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"speed_of_light": 3}, "speed_of_light"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop": [""]}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
        ({"tools": [{"type": "retrieval"}]}, "tools"),
        ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs"),
        ({"turn_type": "other"}, "turn_type"),
    ],
)
def test_a_parameter_that_has_no_effect_here_is_refused_by_name(change: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_request(json.dumps({"messages": USER, **change}).encode())
    assert caught.value.status == 400
    assert caught.value.param == param
    assert caught.value.kind == "invalid_request_error"


def test_null_and_harmless_parameters_are_accepted() -> None:
    harmless = dict.fromkeys(IGNORED, "x")
    parse_request(json.dumps({"messages": USER, "logprobs": None, "n": None, "anything": None, **harmless}).encode())


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b'{"messages": [{"role": "user", "content": "\\ud800"}]}'])
def test_a_body_that_is_no_request(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_request(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


async def test_a_refused_request_is_answered_and_counted(stack: Stack) -> None:
    response = await post(stack, {"messages": USER, "n": 99})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "n"
    assert stack.engine.requests == []
    assert stack.metric("openclaw_requests_total", code="400") == 1


async def test_body_too_large(start: Starter) -> None:
    stack = await start(max_body_bytes=1024)
    response = await post(stack, {"messages": [{"role": "user", "content": "x" * 2000}]})
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"


@pytest.mark.parametrize(
    "messages",
    [[{"role": "user", "content": "a"}] * 4097, [{"role": "user", "content": [{"type": "text", "text": "a"}] * 8193}]],
    ids=["messages", "parts"],
)
async def test_a_conversation_that_has_grown_too_long_is_told_as_an_overflow(stack: Stack, messages: Any) -> None:
    """Clients compact a conversation at this error, and end at another."""
    with pytest.raises(openai.BadRequestError, match=r"Please reduce the length of the messages\.") as caught:
        await stack.client.chat.completions.create(model="any", messages=messages)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


async def test_prompt_longer_than_the_context(stack: Stack) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await stack.client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "word and word " * 2000}]
        )
    assert caught.value.code == "context_length_exceeded"
    assert "2048 tokens" in str(caught.value)
    assert stack.engine.requests == []
    assert stack.metric("openclaw_requests_total", code="400") == 1


async def test_unknown_paths_have_the_error_shape(stack: Stack) -> None:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        for path in ("/v1/nothing", "/nothing", "/v1/models/other"):
            response = await client.get(path)
            assert response.status_code == 404
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert (await client.get("/v1/chat/completions")).status_code == 405


async def test_the_key_is_asked_for(start: Starter) -> None:
    stack = await start(api_key="s3cret")
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "s3cret"}):
        response = await post(stack, {"messages": USER}, **headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert "s3cret" not in response.text
    stack.say("hi")
    assert (await post(stack, {"messages": USER}, authorization="Bearer s3cret")).status_code == 200
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/metrics")).status_code == 401


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_aborts_the_generation(stack: Stack, stream: bool) -> None:
    stack.say("one two three four five six")
    stack.engine.token_gate = asyncio.Semaphore(2)
    request = {"messages": USER, "stream": stream}

    async def leave_after_two_tokens() -> None:
        async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
            async with client.stream("POST", "/v1/chat/completions", json=request) as response:
                async for _ in response.aiter_bytes():
                    continue

    task = asyncio.create_task(leave_after_two_tokens())
    gate = stack.engine.token_gate
    await stack.engine.wait_for(lambda: bool(stack.engine.running))
    await until(lambda: gate.locked() and stack.service.replies.under_way == 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await stack.engine.wait_for(lambda: bool(stack.engine.aborted) and not stack.engine.running)
    await until(lambda: stack.metric("openclaw_turns_total", kind="main", outcome="abort") == 1)
    (turn,) = stack.turns()
    assert (turn.finish_reason, turn.state, turn.reason) == ("abort", "excluded", "aborted")
    assert stack.engine.aborted == [turn.id]
    assert len(turn.response_ids) == len(turn.response_logprobs) <= 2
    assert stack.metric("openclaw_requests_in_flight") == 0


async def until(condition: Any) -> None:
    """Yield to the event loop until ``condition`` holds."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def test_a_reply_that_cannot_be_recorded_ends_in_an_error(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(turn: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(stack.ledger.turns, "record", refuse)
    stack.say("hi", "hi")
    response = await post(stack, {"messages": USER})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    response = await post(stack, {"messages": USER, "stream": True})
    assert '"code":"internal_error"' in response.text
    assert "[DONE]" not in response.text
    assert stack.metric("openclaw_ledger_failures_total") == 2
