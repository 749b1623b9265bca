"""Generation and the commit of the next state go on together; what becomes of a request when one of them fails or its client leaves."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest

from lab.testkit.waiting import eventually
from openclaw.ledger.exceptions import LedgerUnavailableError
from tests.unit.gateway.conftest import Stack

PATH = "/v1/chat/completions"
QUESTION: dict[str, Any] = {"role": "user", "content": "Hello?"}


class Gate:
    """Stands before a ledger's ``record_next_state``; what waits there goes on when it is opened."""

    def __init__(self, stack: Stack, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()
        record = stack.ledger.turns.record_next_state

        def held(*arguments: Any) -> None:
            self.entered.set()
            assert self.leave.wait(10)
            if error is not None:
                raise error
            record(*arguments)

        monkeypatch.setattr(stack.ledger.turns, "record_next_state", held)


async def second_turn(stack: Stack, http: httpx.AsyncClient) -> dict[str, Any]:
    """Hold a first turn; return the request that goes on with it."""
    reply = (await http.post(PATH, json={"messages": [QUESTION], "session_id": "s"})).json()["choices"][0]["message"]
    return {"messages": [QUESTION, reply, {"role": "user", "content": "And?"}], "session_id": "s", "stream": True}


async def test_the_engine_generates_while_the_next_state_is_committed_but_nothing_is_said(
    stack: Stack, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.say("Hi.", "Well.")
    request = await second_turn(stack, http)
    gate = Gate(stack, monkeypatch)
    answering = asyncio.create_task(http.post(PATH, json=request))
    await asyncio.to_thread(gate.entered.wait, 10)
    await stack.engine.wait_for(lambda: len(stack.engine.requests) == 2 and not stack.engine.running)
    assert not answering.done()
    gate.leave.set()
    assert "[DONE]" in (await answering).text
    assert stack.turns()[0].next_state == request["messages"][-1:]


async def test_a_commit_that_fails_ends_the_generation(
    stack: Stack, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.say("Hi.", "A long reply that nobody gets.")
    request = await second_turn(stack, http)
    stack.engine.token_gate = asyncio.Semaphore(1)
    gate = Gate(stack, monkeypatch, LedgerUnavailableError("the disk is full"))
    answering = asyncio.create_task(http.post(PATH, json=request))
    await stack.engine.wait_for(lambda: bool(stack.engine.running))
    gate.leave.set()
    response = await answering
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "ledger_unavailable"
    await stack.engine.wait_for(lambda: bool(stack.engine.aborted))
    assert len(stack.turns()) == 1
    await eventually(lambda: stack.metric("openclaw_requests_in_flight"), 0)
    assert stack.service.sessions.sizes()["in_flight"] == 0


async def test_an_engine_that_refuses_while_the_commit_goes_on_leaves_the_session_free(
    stack: Stack, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.say("Hi.", "unused")
    request = await second_turn(stack, http)
    stack.engine.fail_with = [400]
    gate = Gate(stack, monkeypatch)
    answering = asyncio.create_task(http.post(PATH, json=request))
    await asyncio.to_thread(gate.entered.wait, 10)
    gate.leave.set()
    assert (await answering).status_code == 400
    assert stack.turns()[0].next_state == request["messages"][-1:]
    await eventually(lambda: stack.metric("openclaw_requests_in_flight"), 0)
    assert stack.service.sessions.sizes()["in_flight"] == 0


async def test_a_client_that_leaves_during_both_is_recorded_as_aborted(
    stack: Stack, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.say("Hi.", "A reply that its reader does not wait for.")
    request = await second_turn(stack, http)
    stack.engine.token_gate = asyncio.Semaphore(0)
    gate = Gate(stack, monkeypatch)
    answering = asyncio.create_task(http.post(PATH, json=request))
    await asyncio.to_thread(gate.entered.wait, 10)
    await stack.engine.wait_for(lambda: bool(stack.engine.running))
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)
    await stack.engine.wait_for(lambda: bool(stack.engine.aborted))
    gate.leave.set()
    await eventually(lambda: [turn.finish_reason for turn in stack.turns()], ["stop", "abort"])
    await eventually(lambda: stack.metric("openclaw_requests_in_flight"), 0)
    assert stack.service.sessions.sizes()["in_flight"] == 0
