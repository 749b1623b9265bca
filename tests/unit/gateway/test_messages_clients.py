"""Captured requests of agent clients in the Messages API: every turn is the one that a person marked.

`tests/data/messages_requests.jsonl` holds requests of Claude Code 2.1.330, opencode 1.18.33 and Hermes 0.19.0 in order, texts
shortened, tools by name. `MARKS` was written by hand, from reading them. A request carries back what this server answered,
as these clients do.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from openclaw.gateway.dialects.anthropic import MESSAGES, MessagesRequest, chat_messages
from openclaw.gateway.dialects.dialect import slim, unslim
from openclaw.ledger.records import Turn
from openclaw.messages.fingerprint import read_history
from tests.unit.gateway.conftest import Stack, Starter

pytestmark = pytest.mark.slow

CONTEXT = 65536
ROWS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data/messages_requests.jsonl").read_text(encoding="utf-8").splitlines()
]
IDS = [f"{row['client']} {row['step']}" for row in ROWS]
REFUSED = "refused"


class Mark(NamedTuple):
    """What a person says of a request: whose it is, and the step of the reply that it gives a next state."""

    kind: str = "main"
    follows: str | None = None
    note: str = ""


MARKS: dict[str, Mark] = {
    "claude basic-1": Mark(),
    "claude basic-2": Mark(follows="basic-1"),
    "claude unnamed-1": Mark(),
    "claude unnamed-2": Mark(note="the same without a stream: a retry"),
    "claude unnamed-3": Mark(follows="unnamed-2"),
    "claude unnamed-4": Mark(note="a retry again"),
    "claude agent-1": Mark(),
    "claude agent-2": Mark("side", note="sub-agent"),
    "claude agent-3": Mark(follows="agent-1"),
    "claude multi-1": Mark(),
    "claude multi-2": Mark(follows="multi-1"),
    "claude multi-3": Mark("side", note="compaction"),
    "claude multi-4": Mark(follows="multi-2", note="the list of tools grew"),
    "claude multi-5": Mark("side", note="web search"),
    "claude multi-6": Mark(follows="multi-4"),
    "claude multi-7": Mark(follows="multi-6"),
    "claude multi-8": Mark(follows="multi-7"),
    "claude resume1-1": Mark(),
    "claude resume1-2": Mark(follows="resume1-1"),
    "claude resume2-1": Mark(follows="resume1-2"),
    "claude resume2-2": Mark(follows="resume2-1"),
    "claude fork-1": Mark(note="a session of its own, so the reply before it stays in the other one"),
    "claude compact-1": Mark("side", note="compaction"),
    "claude compact-2": Mark("side", note="compaction"),
    "claude aftercompact-1": Mark(follows="fork-1", note="the history begins anew, with the last reply"),
    "claude aftercompact-2": Mark(follows="aftercompact-1"),
    "claude tui-2": Mark("side", note="title"),
    "claude tui-3": Mark(),
    "claude tui-4": Mark(follows="tui-3"),
    "claude tui-5": Mark("side", note="title"),
    "claude tui-6": Mark(follows="tui-4"),
    "claude r503openai-1": Mark(REFUSED),
    "claude r503openai-2": Mark(note="retry of a refused one"),
    "claude r503openai-3": Mark(follows="r503openai-2"),
    "claude ws-1": Mark(),
    "claude ws-2": Mark(follows="ws-1"),
    "claude ws-3": Mark(follows="ws-2"),
    "claude ws-4": Mark(follows="ws-3"),
    "claude autocompact2-1": Mark(),
    "claude autocompact2-2": Mark("side", "autocompact2-1", "compaction, with a tool's result that comes nowhere else"),
    "claude autocompact2-3": Mark(note="the history begins anew"),
    "claude autocompact2-4": Mark("side", "autocompact2-3", "compaction, in the same way"),
    "claude lean-all-1": Mark(),
    "claude lean-all-2": Mark(follows="lean-all-1"),
    "opencode anthropic-1": Mark("side", note="title"),
    "opencode anthropic-2": Mark(),
    "opencode anthropic-3": Mark(follows="anthropic-2"),
    "opencode anthropic-nosig-1": Mark("side", note="title"),
    "opencode anthropic-nosig-2": Mark(),
    "opencode anthropic-nosig-3": Mark(follows="anthropic-nosig-2"),
    "hermes anthropic_messages-11": Mark(),
    "hermes anthropic_messages-19": Mark(follows="anthropic_messages-11"),
}


def canonical(body: dict[str, Any]) -> list[dict[str, Any]]:
    return chat_messages(MessagesRequest.model_validate(body))


class Conversations:
    """Replaces the replies in captured requests by what the server answered."""

    def __init__(self) -> None:
        self.sent: dict[bytes, list[dict[str, Any]]] = {}
        """Our blocks, by the digest of the captured conversation up to their reply."""
        self.calls: dict[str, str] = {}
        """Our call ids, by the captured ones."""

    def reply_to(self, number: int) -> list[dict[str, Any]]:
        """Return the blocks with which the captured server answered, from the next request that carries them."""
        asked = read_history(canonical(ROWS[number]["body"])).asked
        for row in ROWS[number + 1 :]:
            history = read_history(canonical(row["body"]))
            for carried in history.replies:
                if carried.before == asked and carried.position >= 0:
                    replies = [message for message in row["body"]["messages"] if message["role"] == "assistant"]
                    return replies[len(history.replies) - 1 - history.replies.index(carried)]["content"]
        return [{"type": "text", "text": "All done: final answer."}]

    def answered(self, number: int, theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> None:
        """Remember an answer."""
        asked = read_history(canonical(ROWS[number]["body"])).asked
        reply = {"role": "assistant", "content": theirs}
        conversation = {**ROWS[number]["body"], "messages": [*ROWS[number]["body"]["messages"], reply, USER]}
        (last, *_) = read_history(canonical(conversation)).replies
        assert last.before == asked
        self.sent[last.conversation] = ours
        self.sent[last.reply] = ours
        uses = [[block["id"] for block in blocks if block["type"] == "tool_use"] for blocks in (theirs, ours)]
        self.calls.update(zip(*uses, strict=True))

    def carrying(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a request with our replies."""
        history = read_history(canonical(body))
        replies = iter(reversed(history.replies))
        messages = []
        for message in body["messages"]:
            if message["role"] == "assistant":
                carried = next(replies)
                ours = self.sent.get(carried.conversation) or self.sent[carried.reply]
                message = {"role": "assistant", "content": ours}
            messages.append(message)
        text = json.dumps(messages)
        for theirs, ours_id in self.calls.items():
            text = text.replace(json.dumps(theirs), json.dumps(ours_id))
        return {**body, "messages": json.loads(text)}


USER = {"role": "user", "content": "?"}
SCHEMA_TITLES = {"claude tui-2": "grammar", "claude tui-5": "grammar"}
MISSED = frozenset({"claude aftercompact-1"})
"""Without any id: a short reply alone, after a summary, names no conversation."""


def written(blocks: list[dict[str, Any]]) -> str:
    """Return the text with which the tiny model says blocks."""
    parts = []
    for block in blocks:
        if block["type"] == "thinking":
            parts.append(f"<think>\n{block['thinking']}\n</think>\n\n")
        elif block["type"] == "text":
            parts.append(block["text"])
        else:
            call = json.dumps({"name": block["name"], "arguments": block["input"]})
            parts.append(f"\n<tool_call>\n{call}\n</tool_call>")
    return "".join(parts)


def blocks_of(response: httpx.Response) -> list[dict[str, Any]]:
    """Return the content of an answer, streamed or whole."""
    if response.headers["content-type"] == "application/json":
        return response.json()["content"]
    blocks: list[dict[str, Any]] = []
    for part in response.text.strip().split("\n\n"):
        data = json.loads(part.split("data: ", 1)[1])
        if data["type"] == "content_block_start":
            blocks.append(dict(data["content_block"], json=""))
        elif data["type"] == "content_block_delta":
            delta = data["delta"]
            name = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}.get(
                delta["type"]
            )
            block = blocks[-1]
            if name is None:
                block["json"] += delta["partial_json"]
            else:
                block[name] += delta[name]
    for block in blocks:
        given = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(given or "{}")
    return blocks


async def replay(stack: Stack, http: httpx.AsyncClient, *, headers: bool) -> dict[str, Turn]:
    """Send the requests in order; return the recorded turn of each."""
    conversations = Conversations()
    recorded: dict[str, str] = {}
    for number, row in enumerate(ROWS):
        mark = MARKS[IDS[number]]
        body = conversations.carrying(row["body"])
        if mark.kind == REFUSED:
            stack.engine.fail_with.append(503)
        else:
            theirs = conversations.reply_to(number)
            stack.say(written(theirs))
        sent = row["headers"] if headers else {}
        response = await http.post("/v1/messages?beta=true", json=body, headers=sent)
        assert response.status_code == (503 if mark.kind == REFUSED else 200), response.text
        if mark.kind != REFUSED:
            assert response.headers["x-turn-type"] == mark.kind or not headers, IDS[number]
            recorded[IDS[number]] = response.headers["x-request-id"]
            conversations.answered(number, theirs, blocks_of(response))
    return {name: stack.ledger.turns.get(turn_id) for name, turn_id in recorded.items()}


def ends_with(turn: Turn, said: list[dict[str, Any]]) -> bool:
    """Return whether a request ends with these messages; a client's own words after them do not count."""
    messages = turn.messages[:-1] if turn.kind == "side" else turn.messages
    return bool(said) and messages[-len(said) :] == said


async def test_captured_traffic_gives_the_turns_a_person_marked(start: Starter) -> None:
    stack: Stack = await start(context_length=CONTEXT, engine_wait_seconds=0.0)
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, timeout=60) as http:
        turns = await replay(stack, http, headers=True)
    assert list(MARKS) == IDS
    followed = {f"{name.split()[0]} {mark.follows}": name for name, mark in MARKS.items() if mark.follows}
    for name, turn in turns.items():
        assert turn.kind == MARKS[name].kind, name
        assert turn.reason == (SCHEMA_TITLES.get(name, "side") if turn.kind == "side" else None), name
        assert (turn.next_state is not None) is (name in followed), name
        if name in followed:
            after = turns[followed[name]]
            assert ends_with(after, turn.next_state or []), name
            assert after.session_id == turn.session_id, name
    assert stack.metric("openclaw_session_events_total", event="next_state") == len(followed)
    assert stack.metric("openclaw_session_events_total", event="retry") == 2
    for event in ("branch", "regeneration", "conflict", "replaced", "unlike"):
        assert stack.metric("openclaw_session_events_total", event=event) == 0, event


async def test_without_headers_ids_and_words_still_link_the_turns(start: Starter) -> None:
    """All replies but one get the same next state."""
    stack: Stack = await start(context_length=CONTEXT, engine_wait_seconds=0.0)
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, timeout=60) as http:
        turns = await replay(stack, http, headers=False)
    for name, mark in MARKS.items():
        if mark.follows is not None and name not in MISSED:
            before = turns[f"{name.split()[0]} {mark.follows}"]
            assert ends_with(turns[name], before.next_state or []), name


@pytest.mark.parametrize("number", range(len(ROWS)), ids=IDS)
def test_a_request_becomes_one_system_message_and_a_conversation(number: int) -> None:
    body = json.dumps(ROWS[number]["body"]).encode()
    question = MESSAGES.read(body, CONTEXT)
    roles = [message["role"] for message in question.raw["messages"]]
    assert "system" not in roles[1:]
    text = json.dumps(question.raw["messages"])
    assert "x-anthropic-billing-header" not in text
    assert "cache_control" not in text
    assert {tool["type"] for tool in question.raw.get("tools", ())} <= {"function"}
    again = unslim(MESSAGES, slim(question))
    assert (again.raw, again.request) == ({name: question.raw[name] for name in again.raw}, question.request)


def test_of_a_billed_text_only_its_line_is_left_out() -> None:
    billed = "x-anthropic-billing-header: cc_version=1; cc_entrypoint=cli;"
    for system in (f"{billed}\nBe kind.", [{"type": "text", "text": text} for text in (billed, "Be kind.")]):
        body = {"max_tokens": 1, "system": system, "messages": [{"role": "user", "content": "Hello?"}]}
        question = MESSAGES.read(json.dumps(body).encode(), CONTEXT)
        assert question.raw["messages"][0] == {"role": "system", "content": "Be kind."}


def test_each_request_begins_with_the_one_before_it() -> None:
    """Captured replies included, by digest: what a client changes from turn to turn is not in the canonical form."""
    for name, mark in MARKS.items():
        if mark.follows is None or mark.follows == "fork-1":
            continue
        rows = dict(zip(IDS, ROWS, strict=True))
        before = read_history(canonical(rows[f"{name.split()[0]} {mark.follows}"]["body"])).asked
        assert before in {carried.before for carried in read_history(canonical(rows[name]["body"])).replies}, name
