"""While the ledger cannot be written the gateway says so, and serves again by itself when it can."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.gateway.conftest import Stack

USER = [{"role": "user", "content": "Hello?"}]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the write lock of a ledger, as another process does."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def post(stack: Stack, messages: list[dict[str, Any]], **fields: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, headers={"X-Session-Id": "me"}) as client:
        return await client.post("/v1/chat/completions", json={"messages": messages, **fields})


@pytest.fixture
def impatient(stack: Stack) -> Stack:
    """A gateway whose ledger waits one millisecond for others."""
    stack.ledger.database.rows("PRAGMA busy_timeout = 1")
    return stack


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_that_cannot_be_recorded_is_a_503_and_the_next_is_not(impatient: Stack, stream: bool) -> None:
    stack = impatient
    stack.say("lost", "kept")
    with locked(stack.ledger.path):
        response = await post(stack, USER, stream=stream)
    assert response.status_code == (200 if stream else 503), "a stream has begun; it ends in the error"
    assert '"code":"ledger_unavailable"' in response.text
    assert "[DONE]" not in response.text
    assert stack.turns() == []
    assert (await post(stack, USER)).status_code == 200
    assert [turn.response_message["content"] for turn in stack.turns()] == ["kept"]
    assert stack.metric("openclaw_ledger_failures_total") == 1


async def test_feedback_that_cannot_be_recorded_is_refused_and_not_lost(impatient: Stack) -> None:
    stack = impatient
    stack.say("first", "second", "second")  # the refused request may have reached the engine
    reply = (await post(stack, USER)).json()["choices"][0]["message"]
    following = [*USER, reply, {"role": "user", "content": "Shorter."}]
    with locked(stack.ledger.path):
        response = await post(stack, following)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["code"] == "ledger_unavailable"
    assert (await post(stack, following)).status_code == 200
    first, second = stack.turns()
    assert first.next_state == following[-1:]
    assert second.response_message["content"] == "second"
