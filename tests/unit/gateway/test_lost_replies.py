"""A client that goes away while its reply is being recorded, and asks again, did not ask for another reply."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest

from tests.unit.gateway.conftest import Stack

EVENTS = "openclaw_session_events_total"
FIRST: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello?"}], "session_id": "s"}


HEADERS = {"x-session-id": "s"}
MESSAGES: list[dict[str, Any]] = FIRST["messages"]
DOORS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 50},
    "/v1/responses": {"input": MESSAGES},
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("door", DOORS)
async def test_a_client_that_left_before_the_end_asks_again(
    stack: Stack, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, stream: bool, door: str
) -> None:
    record, entered, leave = stack.ledger.turns.record, threading.Event(), threading.Event()

    def held(turn: Any) -> Any:
        entered.set()
        assert leave.wait(10)
        return record(turn)

    monkeypatch.setattr(stack.ledger.turns, "record", held)
    stack.say("Hello.", "Hello.", "So.")
    request = asyncio.create_task(http.post(door, json={**DOORS[door], "stream": stream}, headers=HEADERS))
    await asyncio.to_thread(entered.wait, 10)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    async with asyncio.timeout(10):
        while stack.metric("openclaw_requests_total", code="499") == 0:
            await asyncio.sleep(0.01)
        leave.set()
        while stack.metric("openclaw_turns_total", kind="main", outcome="stop") == 0:
            await asyncio.sleep(0.01)
    again = await http.post(door, json=DOORS[door], headers=HEADERS)
    assert again.status_code == 200
    assert [(turn.finish_reason, turn.reason) for turn in stack.turns()] == [("stop", None), ("stop", None)]
    assert stack.metric(EVENTS, event="retry") == 1
    assert stack.metric(EVENTS, event="regeneration") == 0
    asked = [*MESSAGES, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "Why?"}]
    field = "input" if door == "/v1/responses" else "messages"
    monkeypatch.undo()
    await http.post(door, json={**DOORS[door], field: asked}, headers=HEADERS)
    lost, got, _ = stack.turns()
    assert (lost.next_state, got.next_state) == (
        None,
        asked[-1:],
    )  # what nobody read gets no reaction, so it is not trained


async def test_a_client_that_got_the_reply_asks_for_another(stack: Stack, http: httpx.AsyncClient) -> None:
    stack.say("Hi.", "Hello.")
    for _ in range(2):
        assert (await http.post("/v1/chat/completions", json=FIRST)).status_code == 200
    assert [turn.reason for turn in stack.turns()] == ["regenerated", None]
    assert stack.metric(EVENTS, event="regeneration") == 1
