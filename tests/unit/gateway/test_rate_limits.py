"""Limits per key: who has to wait, what he is told, and that the others need not."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from openclaw.gateway.limits import RateLimitError, RateLimits
from tests.unit.gateway.conftest import Stack, Starter

USER: list[Any] = [{"role": "user", "content": "Hello?"}]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the limits see; a test sets ``now[0]``."""
    value = [1000.0]
    monkeypatch.setattr(time, "time", lambda: value[0])
    return value


async def refused(limits: RateLimits, key: str) -> RateLimitError:
    with pytest.raises(RateLimitError) as caught:
        await limits.enter(key)
    return caught.value


async def test_requests_per_minute(now: list[float]) -> None:
    limits = RateLimits(requests=2)
    for _ in range(2):
        await limits.enter("a")
        await limits.leave("a", 100)
    now[0] += 20
    error = await refused(limits, "a")
    assert (error.status, error.limit, error.retry_after) == (429, "requests", 40)
    await limits.enter("b")
    now[0] += 40
    await limits.enter("a")


async def test_tokens_are_charged_when_a_reply_is_over(now: list[float]) -> None:
    limits = RateLimits(tokens=100)
    await limits.enter("a")
    await limits.enter("a")
    await limits.leave("a", 250)
    error = await refused(limits, "a")
    assert (error.limit, error.kind, error.retry_after) == ("tokens", "tokens", 60)
    await limits.leave("a", 0)
    now[0] += 61
    await limits.enter("a")


async def test_requests_at_a_time() -> None:
    limits = RateLimits(concurrent=2)
    results = await asyncio.gather(*(limits.enter("a") for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(result, RateLimitError) for result in results) == 3
    await limits.leave("a", 0)
    await limits.enter("a")
    assert (await refused(limits, "a")).limit == "concurrent"


async def test_a_refused_request_is_not_under_way() -> None:
    limits = RateLimits(requests=1, concurrent=2)
    await limits.enter("a")
    for _ in range(5):
        assert (await refused(limits, "a")).limit == "requests"


async def test_feedback_has_a_limit_of_its_own(start: Starter) -> None:
    stack = await start(rate_limit_feedback=2)
    stack.say("hi")
    reply = await stack.client.chat.completions.create(model="any", messages=USER)
    body = {"response_id": reply.id, "thumbs": "up"}
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        answers = [await client.post("/v1/feedback", json=body) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert 1 <= int(answers[2].headers["retry-after"]) <= 60
    assert stack.metric("openclaw_rate_limited_total", key="local", limit="feedback_per_minute") == 1
    assert stack.metric("openclaw_limit_hits_total", limit="feedback_per_minute") == 1
    stack.say("again")
    assert (await stack.client.chat.completions.create(model="any", messages=USER)).id, "chat goes on"


async def test_the_sdk_is_told_when_to_come_again(start: Starter, tmp_path: Path) -> None:
    stack = await start(rate_limit_requests=1)
    stack.say("hi")
    await stack.client.chat.completions.create(model="any", messages=USER)
    with pytest.raises(openai.RateLimitError) as caught:
        await stack.client.chat.completions.create(model="any", messages=USER)
    assert caught.value.code == "rate_limit_exceeded"
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
    assert caught.value.response.headers["x-request-id"]
    assert stack.metric("openclaw_rate_limited_total", key="local", limit="requests") == 1
    assert stack.metric("openclaw_requests_total", code="429") == 1
    assert len(stack.engine.requests) == 1
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        assert (await client.get("/metrics")).status_code == 200, "looking is not limited"


async def test_a_streamed_reply_counts_until_it_ends(start: Starter) -> None:
    stack: Stack = await start(rate_limit_concurrent=1)
    stack.say("one two three", "four")
    async with AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as client:
        stack.engine.token_gate = asyncio.Semaphore(1)
        stream = await client.chat.completions.create(model="any", messages=USER, stream=True)
        await anext(aiter(stream))
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="any", messages=USER)
        for _ in range(50):
            stack.engine.token_gate.release()
        async for _ in stream:
            continue
        assert (await client.chat.completions.create(model="any", messages=USER)).choices[0].message.content == "four"
