"""Whatever ends a request, its client gets an answer in the API's shape: the server's end, bugs, half-broken requests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from lab.testkit.waiting import eventually
from openclaw.gateway.guard import Doorway
from tests.unit.gateway.conftest import Stack, Starter

USER = [{"role": "user", "content": "Hello?"}]
CHAT = "/v1/chat/completions"


def end_grace() -> None:
    """Cancel the requests under way, as uvicorn does when its grace time is over."""
    for task in asyncio.all_tasks():
        if "RequestResponseCycle.run_asgi" in repr(task.get_coro()):
            task.cancel("grace time exceeded")


def shape(response: httpx.Response) -> tuple[int, str]:
    """Return status and code of an error; it must have the API's shape."""
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert {*error} == {"message", "type", "param", "code"}
    return response.status_code, error["code"]


@pytest.fixture
async def waiting(start: Starter) -> Any:
    """A gateway whose engine answers 503, so that requests wait for it."""
    stack = await start(keepalive_seconds=0.05)
    stack.engine.fail_with = [503] * 1000
    return stack


async def test_requests_that_wait_when_the_server_ends_are_told_so(waiting: Stack) -> None:
    async with httpx.AsyncClient(base_url=waiting.url, trust_env=False) as client:
        asked = [asyncio.create_task(client.post(CHAT, json={"messages": USER})) for _ in range(3)]
        await waiting.engine.wait_for(lambda: len(waiting.engine.requests) >= 3)
        end_grace()
        answers = await asyncio.gather(*asked)
    assert [shape(answer) for answer in answers] == [(503, "server_stopping")] * 3
    assert all(answer.headers["retry-after"] == "1" for answer in answers)
    await eventually(lambda: waiting.metric("openclaw_requests_total", code="503"), 3.0)
    await eventually(lambda: waiting.service.replies.under_way, 0)


async def test_a_stream_that_waits_when_the_server_ends_has_an_error_as_its_last_event(waiting: Stack) -> None:
    async with httpx.AsyncClient(base_url=waiting.url, trust_env=False) as client:
        async with client.stream("POST", CHAT, json={"messages": USER, "stream": True}) as response:
            lines = response.aiter_lines()
            assert await anext(lines) == ": keep-alive"
            end_grace()
            events = [line async for line in lines if line.startswith("data: ")]
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "server_stopping"
    await eventually(lambda: waiting.metric("openclaw_requests_total", code="503"), 1.0)
    await eventually(lambda: waiting.service.replies.under_way, 0)


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("POST", "/v1/feedback"), ("POST", CHAT)])
async def test_the_end_of_the_server_reaches_every_route(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    def cancelled(*_: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(Doorway, "check", cancelled)
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        assert shape(await client.request(method, path, json={})) == (503, "server_stopping")


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("POST", "/v1/feedback"), ("POST", CHAT)])
async def test_a_bug_before_the_routes_is_a_500_in_shape(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str, path: str
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Doorway, "check", broken)
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        assert shape(await client.request(method, path, json={})) == (500, "internal_error")
    await eventually(lambda: any("a bug" in str(record.exc_info) for record in caplog.records), wanted=True)


async def test_a_method_that_a_route_lacks_is_told_with_those_it_has(stack: Stack) -> None:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        answer = await client.delete("/v1/models")
    assert shape(answer)[0] == 405
    assert answer.headers["allow"] == "GET"
