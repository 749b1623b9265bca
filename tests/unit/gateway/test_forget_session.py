"""Forgetting and redaction on a running gateway: nothing comes back, and the conversation goes on."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import httpx
import pytest

from openclaw.gateway import app
from openclaw.gateway.app import SteadyClock
from openclaw.ledger.exceptions import LedgerFullError
from openclaw.privacy.redactor import Redactor
from openclaw.privacy.secret_finder import kept_id
from tests.unit.gateway.conftest import Stack, Starter

USER = [{"role": "user", "content": "Hello?"}]
MARKER = "qx7marker"
SECRET = "ghp_" + "a1B2" * 9


async def ask(stack: Stack, messages: list[dict[str, Any]], session: str | None = "me") -> dict[str, Any]:
    headers = {"X-Session-Id": session} if session else {}
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, headers=headers) as client:
        response = await client.post("/v1/chat/completions", json={"messages": messages})
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]


async def delete(stack: Stack, session: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        return await client.delete(f"/v1/sessions/{session}")


async def test_forgotten_session_is_gone_from_memory_and_disk(stack: Stack) -> None:
    stack.say("one", "two", "three")
    words = [{"role": "user", "content": MARKER}]
    reply = await ask(stack, words)
    await ask(stack, USER, "other")
    response = await delete(stack, "me")
    assert response.status_code == 200
    assert response.json() == {
        "id": "me", "object": "session", "deleted": True, "turns": 1, "samples": 0, "trained": 0, "erased": True,
    }  # fmt: skip
    for path in stack.ledger.path.parent.glob("ledger.sqlite*"):
        assert MARKER.encode() not in path.read_bytes()
    assert [turn.session_id for turn in stack.turns()] == ["other"]
    assert (await delete(stack, "me")).status_code == 404
    stack.clock[0] += 1
    await ask(stack, [*words, reply, *USER])
    assert [(turn.session_id, turn.index, turn.next_state) for turn in stack.turns()] == [
        ("other", 0, None),
        ("me", 0, None),
    ]


async def test_a_full_disk_says_what_to_do(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise LedgerFullError("the disk is full")

    stack.say("one")
    await ask(stack, USER)
    monkeypatch.setattr(stack.ledger.sessions, "forget", full)
    response = await delete(stack, "me")
    assert (response.status_code, response.json()["error"]["code"]) == (507, "disk_full")
    assert "free some space" in response.json()["error"]["message"]


async def test_forgotten_words_leave_the_prompt_cache(stack: Stack) -> None:
    cache = stack.service._renderer._prompts._segments._cache
    stack.say("one", "two")
    await ask(stack, [{"role": "user", "content": MARKER}])
    assert any(MARKER in text for text in cache)
    await delete(stack, "me")
    assert not cache
    await ask(stack, USER, "other")
    assert [turn.session_id for turn in stack.turns()] == ["other"]


async def test_reply_under_way_is_served_and_not_recorded(stack: Stack) -> None:
    stack.say("one", "two")
    await ask(stack, USER)
    record = stack.ledger.turns.record

    def forget_first(turn: Any) -> Any:
        stack.ledger.sessions.forget("me")  # what the command does in another process
        return record(turn)

    stack.ledger.turns.record = forget_first  # type: ignore[method-assign]
    reply = await ask(stack, USER)
    assert reply["content"] == "two"
    assert stack.turns() == []
    assert stack.metric("openclaw_session_events_total", event="forgotten") == 1


async def test_old_sessions_are_forgotten_by_the_sweep(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MAX_SWEEP_SECONDS", 0.02)
    passed = [0.0]
    monkeypatch.setattr(app, "SteadyClock", partial(SteadyClock, passed=lambda: passed[0]))
    stack = await start(retention_days=2.0)
    stack.say("one", "two")
    await ask(stack, USER, "old")
    stack.clock[0] += 1.5 * app.SECONDS_A_DAY
    passed[0] += 1.5 * app.SECONDS_A_DAY
    await ask(stack, USER, "new")
    assert [turn.session_id for turn in stack.turns()] == ["old", "new"]
    stack.clock[0] += app.SECONDS_A_DAY
    passed[0] += app.SECONDS_A_DAY
    async with asyncio.timeout(20):
        while len(stack.turns()) > 1:
            await asyncio.sleep(0.02)
    assert [turn.session_id for turn in stack.turns()] == ["new"]


async def test_a_secret_leaves_the_conversation_together(stack: Stack) -> None:
    stack.ledger.database.redaction = Redactor("secrets")
    stack.say("noted", "sure", "bye")
    first = [{"role": "user", "content": f"remember {SECRET}"}]
    second = [*first, await ask(stack, first, None), {"role": "user", "content": "and then?"}]
    third = [*second, await ask(stack, second, None), {"role": "user", "content": "end"}]
    await ask(stack, third, None)
    turns = stack.turns()
    assert len({turn.session_id for turn in turns}) == 1
    assert [(turn.index, turn.reason, turn.next_state) for turn in turns] == [(n, "redacted", None) for n in range(3)]
    assert stack.metric("openclaw_session_events_total", event="conflict") == 0


async def test_a_session_named_by_a_secret_is_found_ended_and_forgotten_by_it(
    stack: Stack, http: httpx.AsyncClient
) -> None:
    """The file never holds the name, not even while the session lasts."""
    stack.say("noted", "sure")
    first = [{"role": "user", "content": "remember this"}]
    second = [*first, await ask(stack, first, SECRET), {"role": "user", "content": "and then?"}]
    await ask(stack, second, SECRET)
    assert {(turn.session_id, turn.index) for turn in stack.turns()} == {(kept_id(SECRET), 0), (kept_id(SECRET), 1)}
    for file in stack.ledger.path.parent.iterdir():
        assert SECRET.encode() not in file.read_bytes()
    assert (await http.post(f"/v1/sessions/{SECRET}/done")).status_code == 200
    assert (await http.delete(f"/v1/sessions/{SECRET}")).status_code == 200
    assert stack.turns() == []
