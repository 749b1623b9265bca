"""A stream that has to wait gets comments, which clients skip; errors after that are events, before it statuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import openai
import pytest

from openclaw.gateway.dialects.dialect import COMMENT
from openclaw.gateway.errors import ApiError
from openclaw.gateway.stream import EventStream
from tests.unit.gateway.conftest import Stack, Starter

USER: Any = [{"role": "user", "content": "Hello?"}]
BODY = {"model": "any", "messages": USER, "stream": True}
SOON = 0.02


@pytest.fixture
async def stack(start: Starter) -> Stack:
    return await start(keepalive_seconds=SOON)


async def read_until(parts: Any, *, count: int, what: bytes = COMMENT) -> bytes:
    """Read until ``what`` has come ``count`` times."""
    data = b""
    async with asyncio.timeout(10):
        while data.count(what) < count:
            data += await anext(parts)
    return data


async def counted(stack: Stack, code: str) -> None:
    """Wait until a completion with this status is counted and none is under way."""
    async with asyncio.timeout(10):
        while stack.metric("openclaw_requests_total", code=code) != 1 or stack.metric("openclaw_requests_in_flight"):
            await asyncio.sleep(0)


async def test_a_held_stream_gets_its_head_and_comments_until_tokens_come(stack: Stack) -> None:
    stack.say("one two three")
    stack.engine.pause()
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, timeout=10) as client:
        async with client.stream("POST", "/v1/chat/completions", json=BODY) as response:
            assert response.status_code == 200
            parts = response.aiter_raw()
            held = await read_until(parts, count=3)
            assert held == COMMENT * held.count(COMMENT)
            stack.engine.resume("2")
            rest = b"".join([part async for part in parts])
    assert rest.rstrip().endswith(b"data: [DONE]")
    assert [turn.response_message["content"] for turn in stack.turns()] == ["one two three"]


async def test_comments_break_a_silence_in_the_middle(stack: Stack) -> None:
    stack.say("one two three")
    gate = stack.engine.token_gate = asyncio.Semaphore(2)
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, timeout=10) as client:
        async with client.stream("POST", "/v1/chat/completions", json=BODY) as response:
            parts = response.aiter_raw()
            await read_until(parts, count=1, what=b"data:")
            await read_until(parts, count=2)
            for _ in range(100):
                gate.release()
            rest = b"".join([part async for part in parts])
    assert rest.rstrip().endswith(b"data: [DONE]")


async def test_the_sdk_skips_comments(stack: Stack) -> None:
    stack.say("one two three")
    stack.engine.pause()
    stream = await stack.client.chat.completions.create(model="any", messages=USER, stream=True)
    await asyncio.sleep(3 * SOON)
    stack.engine.resume("2")
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two three"


async def test_an_error_after_comments_is_an_event(start: Starter) -> None:
    stack = await start(keepalive_seconds=SOON, engine_url="http://127.0.0.1:9", engine_wait_seconds=0.5)
    stream = await stack.client.chat.completions.create(model="any", messages=USER, stream=True)
    with pytest.raises(openai.APIError) as caught:
        await anext(aiter(stream))
    assert caught.value.code == "engine_unavailable"
    await counted(stack, "503")
    assert stack.metric("openclaw_refused_total") == 1
    assert stack.turns() == []


async def test_a_client_that_leaves_a_held_stream_ends_its_generation(stack: Stack) -> None:
    stack.say("one two three")
    stack.engine.pause()
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, timeout=10) as client:
        async with client.stream("POST", "/v1/chat/completions", json=BODY) as response:
            await read_until(response.aiter_raw(), count=1)
    await stack.engine.wait_for(lambda: bool(stack.engine.aborted))
    await counted(stack, "499")
    assert [turn.finish_reason for turn in stack.turns()] == ["abort"]


async def test_more_requests_than_the_server_holds(start: Starter) -> None:
    stack = await start(keepalive_seconds=SOON, max_requests=2)
    stack.say("one", "two", "three")
    stack.engine.pause()
    create = stack.client.chat.completions.create
    running = [asyncio.create_task(create(model="any", messages=USER)) for _ in range(2)]
    await stack.engine.wait_for(lambda: len(stack.engine.requests) == 2)
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, timeout=10) as client:
        response = await client.post("/v1/chat/completions", json=BODY)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "server_busy")
        assert response.headers["retry-after"] == "1"
        assert stack.metric("openclaw_refused_total") == 1
        assert (await client.get("/healthz")).status_code == 200
        stack.engine.resume("2")
        await asyncio.gather(*running)
        assert (await client.post("/v1/chat/completions", json=BODY)).status_code == 200


async def test_nothing_overtakes_a_heartbeat() -> None:
    """The events of a response are numbered, and its first one may be a heartbeat's."""
    written, sent = asyncio.Event(), list[bytes]()

    class Numbered:
        def heartbeat(self) -> bytes:
            written.set()
            return b"0"

        def failure(self, error: ApiError) -> bytes:
            raise AssertionError

    async def source() -> AsyncGenerator[bytes, None]:
        await written.wait()
        yield b"1"

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])

    async def receive() -> Any:
        await asyncio.Event().wait()

    stream = EventStream(source(), Numbered(), {}, lambda status: None, keepalive_seconds=0.01)
    await stream({"type": "http"}, receive, send)
    assert sent[:2] == [b"0", b"1"]
