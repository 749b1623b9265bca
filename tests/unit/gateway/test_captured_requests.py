"""Real traffic of OpenClaw through the whole gateway: every turn is the one that a person marked.

`tests/data/openclaw_requests.jsonl` holds 44 requests of openclaw 2026.9.6 in order, texts shortened. `MARKS` was
written by hand, from reading them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from openclaw.ledger.records import Turn
from tests.unit.gateway.conftest import Stack, Starter

pytestmark = pytest.mark.slow

READ = 'PRE-1 calling tool\n<tool_call>\n{"name": "read", "arguments": {"path": "foo.txt"}}\n</tool_call>'
EXEC = '{}\n<tool_call>\n{{"name": "exec", "arguments": {{"command": "echo hi"}}}}\n</tool_call>'
USER_A, USER_B = "b7c6b4ad-ad1c-497f-bf3e-921fd51a4ec3", "d4ff8fa0-23e9-4d65-816c-e2ce6a0bc8d5"
USER_C, WEB = "a00a04c0-26f2-4b49-b900-0aad5d259ae2", "a3c5f76e-599a-479c-acdb-eaa9efd6f5ac"
HEARTBEATS = "02406230-8dcc-4130-924c-063a9790ae4d"
CRON_1, CRON_2 = "e89e16e2-cc5b-44b5-829a-710f99b46e5e", "1dc1893c-ffe6-4c9f-ac4f-2485cdd395f1"
REFUSED = ""


class Mark(NamedTuple):
    """What a person says of a request.

    Attributes:
        reply: what the server answered; `REFUSED` is a 503.
        session: the conversation it belongs to.
        kind: whose turn it is.
        follows: the request whose reply it gives a next state, or None.
        next_state: (role, a piece of the text) of that next state's messages.
        note: what else there is to say.
    """

    reply: str
    session: str
    kind: str
    follows: int | None = None
    next_state: tuple[tuple[str, str], ...] = ()
    note: str = ""


def says(text: str) -> tuple[tuple[str, str], ...]:
    return (("user", text),)


def returns(text: str) -> tuple[tuple[str, str], ...]:
    return (("tool", text),)


MARKS = {
    0: Mark("ANSWER-1 ok", "test1", "main"),
    1: Mark(READ, "test2", "main"),
    2: Mark("ANSWER-2 ok", "test2", "main", 1, returns("hello file\n")),
    3: Mark(EXEC.format("ANSWER-3 ok"), "test2", "main", 2, says("Run date. INLINETHINK")),
    4: Mark("ANSWER-4 ok", "test2", "main", 3, returns("hi")),
    5: Mark("ANSWER-5 ok", "test2", "main", 4, says("INLINETHINK just answer")),
    6: Mark("ANSWER-6 ok", "test2", "main", 5, says("bye")),
    7: Mark("ANSWER-9 ok", "lean1", "main"),
    8: Mark(EXEC.format("PRE-10 calling tool"), "lean1", "main", 7, says("Please read foo.")),
    9: Mark("ANSWER-11 ok", "lean1", "main", 8, returns("hi")),
    10: Mark("ANSWER-12 ok", "lean1", "main", 9, says("bye")),
    11: Mark("ANSWER-13 ok", USER_A, "main"),
    12: Mark("ANSWER-14 ok", USER_A, "main", 11, says("second turn")),
    13: Mark(EXEC.format("PRE-15 calling tool"), USER_A, "main", 12, says("tool turn")),
    14: Mark("ANSWER-16 ok", USER_A, "main", 13, returns("hi")),
    15: Mark("ANSWER-17 ok", USER_B, "main"),
    16: Mark("ANSWER-18 ok", HEARTBEATS, "side", note="heartbeat"),
    17: Mark("ANSWER-19 ok", HEARTBEATS, "side", note="heartbeat"),
    18: Mark("ANSWER-20 ok", HEARTBEATS, "side", note="heartbeat"),
    19: Mark("ANSWER-21 ok", USER_A, "main", 14, says("BIGUSAGE please talk a lot")),
    20: Mark("ANSWER-22 ok", USER_A, "main", 19, says("second after BIGUSAGE"), "after a compaction"),
    21: Mark("ANSWER-23 ok", USER_A, "side", note="compaction"),
    22: Mark("ANSWER-24 ok", USER_A, "main", 20, says("third normal"), "the question is in the summary now"),
    23: Mark("ANSWER-25 ok", USER_A, "main", 22, says("/compact keep it short")),
    24: Mark("ANSWER-26 ok", USER_A, "main", 23, says("after compact")),
    25: Mark("ANSWER-1 ok", HEARTBEATS, "side", note="heartbeat, resumed after the server was away"),
    26: Mark(REFUSED, USER_C, "main"),
    27: Mark(REFUSED, USER_C, "main", note="retry of 26"),
    28: Mark(REFUSED, USER_C, "main", note="retry of 26"),
    29: Mark(REFUSED, USER_C, "main", note="retry of 26"),
    30: Mark(REFUSED, USER_C, "main", note="retry of 26"),
    31: Mark("ANSWER-7 ok", USER_C, "main", note="retry of 26, answered"),
    32: Mark("ANSWER-8 ok", HEARTBEATS, "side", note="heartbeat"),
    34: Mark("ANSWER-9 ok", CRON_1, "side", note="cron"),
    35: Mark("ANSWER-24 ok", WEB, "main"),
    36: Mark("ANSWER-25 ok", WEB, "side", note="memory flush"),
    37: Mark(EXEC.format("PRE-26 calling tool"), WEB, "main", 35, says("plain USETOOL:exec")),
    38: Mark("ANSWER-27 ok", WEB, "main", 37, returns("hi")),
    39: Mark("ANSWER-28 ok", WEB, "main", 38, says("BIGUSAGE")),
    40: Mark("ANSWER-29 ok", WEB, "main", 39, says("after"), "after a compaction"),
    42: Mark("ANSWER-30 ok", CRON_2, "side", note="cron"),
    43: Mark("ANSWER-31 ok", HEARTBEATS, "side", note="heartbeat"),
}
MODELS = {33, 41}


class Client(NamedTuple):
    """What of a request a client sends."""

    headers: tuple[str, ...]
    runtime_line: bool
    # requests that belong elsewhere for a client that says less; None: to a session that nothing states
    sessions: dict[int, str | None]
    missed: frozenset[int] = frozenset()


FLUSH = "internal-session-effects-f5b77247-9d73-4e51-8328-3e035bf1f894-841386439e941606"
CLIENTS = {
    "extension": Client(("x-session-id", "x-turn-type", "session_id", "x-session-affinity"), True, {}),
    "affinity headers": Client(
        ("session_id", "x-session-affinity"),
        True,
        {
            34: "openclaw-cron-c578c84455669802b206e35274ac3bee",
            42: "openclaw-cron-0996a0f45095ee824c1cb391325e307c",
        },
    ),
    "no headers": Client((), True, {21: None, 34: None, 36: FLUSH, 42: None}),
    # 22: the compaction put the question into the summary and left the short reply alone, which names no conversation
    "nothing but messages": Client((), False, dict.fromkeys(MARKS), frozenset({22})),
}


def requests() -> dict[int, Any]:
    path = Path(__file__).parents[2] / "data/openclaw_requests.jsonl"
    return dict(enumerate(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()))


def without_runtime_line(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] != "user" or not isinstance(message["content"], str):
        return message
    lines = [line for line in message["content"].split("\n") if not line.startswith("Runtime: agent=")]
    return {**message, "content": "\n".join(lines).rstrip()}


def body_of(row: Any, client: Client) -> dict[str, Any]:
    body = dict(row["body"])
    if "tools" in body:
        body["tools"] = [
            {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
            for name in body["tools"]
        ]
    if not client.runtime_line:
        body["messages"] = [without_runtime_line(message) for message in body["messages"]]
    return body


async def replay(stack: Stack, http: httpx.AsyncClient, client: Client) -> dict[int, Turn]:
    """Send the requests in order; return the recorded turn of each."""
    recorded: dict[int, str] = {}
    for number, row in requests().items():
        if number in MODELS:
            assert (await http.get(row["path"])).status_code == 200
            continue
        mark = MARKS[number]
        if mark.reply == REFUSED:
            stack.engine.fail_with.append(503)
        else:
            stack.say(mark.reply)
        headers = {name: value for name, value in row["headers"].items() if name in client.headers}
        response = await http.post(row["path"], json=body_of(row, client), headers=headers)
        assert response.status_code == (503 if mark.reply == REFUSED else 200), response.text
        if mark.reply != REFUSED:
            recorded[number] = response.headers["x-request-id"]
            assert response.headers["x-turn-type"] == mark.kind
    return {number: stack.ledger.turns.get(turn_id) for number, turn_id in recorded.items()}


@pytest.mark.parametrize("name", CLIENTS)
async def test_captured_traffic_gives_the_turns_a_person_marked(start: Starter, name: str) -> None:
    client = CLIENTS[name]
    stack: Stack = await start(context_length=65536, engine_wait_seconds=0.0)
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        turns = await replay(stack, http, client)
    assert requests().keys() == MARKS.keys() | MODELS
    assert turns.keys() == {number for number, mark in MARKS.items() if mark.reply != REFUSED}
    assert len(stack.turns()) == len(turns)
    expected = {
        mark.follows: (mark.next_state, number)
        for number, mark in MARKS.items()
        if mark.follows is not None and number not in client.missed
    }
    for number, turn in turns.items():
        mark = MARKS[number]
        assert turn.kind == mark.kind, number
        assert turn.reason == ("side" if mark.kind == "side" else None), number
        if (session := client.sessions.get(number, mark.session)) is not None:
            assert turn.session_id == session, number
        if number not in expected:
            assert turn.next_state is None, number
            continue
        pieces, _ = expected[number]
        state = turn.next_state or []
        assert [message["role"] for message in state] == [role for role, _ in pieces], number
        for message, (_, piece) in zip(state, pieces, strict=True):
            assert piece in message["content"], number
    assert stack.metric("openclaw_session_events_total", event="next_state") == len(expected)
    for event in ("branch", "regeneration", "conflict"):
        assert stack.metric("openclaw_session_events_total", event=event) == 0, event


async def test_plain_conversations_are_told_apart(start: Starter) -> None:
    """Without any header or Runtime line, the turns of one conversation share a session that no other one has."""
    client = CLIENTS["nothing but messages"]
    stack: Stack = await start(context_length=65536, engine_wait_seconds=0.0)
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        turns = await replay(stack, http, client)
    sessions: dict[str, set[str]] = {}
    for number, turn in turns.items():
        if MARKS[number].kind == "main" and number < 22:
            sessions.setdefault(MARKS[number].session, set()).add(turn.session_id)
    assert all(len(found) == 1 for found in sessions.values()), sessions
    assert len(set.union(*sessions.values())) == len(sessions)
