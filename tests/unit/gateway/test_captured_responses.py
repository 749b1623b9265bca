"""Real requests of Codex and opencode through the whole gateway: every turn is the one that a person marked.

`tests/data/responses_requests.jsonl` holds what Codex 0.169.0 and opencode 1.18.33 sent to ``/v1/responses``, texts
shortened. The engine says what the next request carries back, and that request then has our items in their places, as the
client would have sent them. `MARKS` was written by hand, from reading the requests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw.ledger.records import Turn
from openclaw.messages.fingerprint import message_digest
from tests.unit.gateway.conftest import Stack, Starter

pytestmark = pytest.mark.slow

DATA = Path(__file__).parents[2] / "data/responses_requests.jsonl"
SIDE = {
    "tui-2": "title",
    "tui-5": "title",
    "autocompact-2": "compaction",
    "autocompact-4": "compaction",
    "autocompact-6": "compaction",
    "sub-3": "sub-agent",
    "responses-1": "title",
    "responses-noenc-1": "title",
}
FOLLOWS = {
    "basic-2": "basic-1",
    "noenc-2": "noenc-1",
    "rcontent-2": "rcontent-1",
    "noids-2": "noids-1",
    "nousage-2": "nousage-1",
    "minusage-2": "minusage-1",
    "mincompl-2": "mincompl-1",
    "unnamed-2": "unnamed-1",
    "nocreated-2": "nocreated-1",
    "nocompleted-2": "nocompleted-1",
    "pretty-2": "pretty-1",
    "r503-3": "r503-2",
    "res1-2": "res1-1",
    "res2-1": "res1-2",
    "res2-2": "res2-1",
    "sub-2": "sub-1",
    "sub-4": "sub-2",
    "multi-2": "multi-1",
    "known-2": "known-1",
    "tui-3": "tui-1",
    "tui-4": "tui-3",
    "img-2": "img-1",
    "lean-2": "lean-1",
    "shipped-2": "shipped-1",
    "responses-3": "responses-2",
    "responses-noenc-3": "responses-noenc-2",
}
"""Whose reply a request reacts to. After a compaction a conversation begins anew."""
RESULTS = {"autocompact-2": "autocompact-1", "autocompact-4": "autocompact-3", "autocompact-6": "autocompact-5"}
"""Whose call a compaction brings the result of, which comes nowhere else."""
REPLY = ("reasoning", "function_call", "custom_tool_call")
Row = dict[str, Any]


def rows() -> list[Row]:
    """Return the requests, with all their tools."""
    found = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    tools = {(row["client"], row["step"]): row["body"].get("tools") for row in found}
    for row in found:
        same = (row["body"].get("tools") or [{}])[0].get("$same_tools_as")
        if same:
            row["body"]["tools"] = tools[row["client"], same]
    return found


def is_reply(item: Row) -> bool:
    return item.get("type") in REPLY or item.get("role") == "assistant"


def replies_of(items: list[Row]) -> list[list[Row]]:
    """Return the replies in a history, each as its items."""
    found: list[list[Row]] = []
    for item, before in zip(items, [{}, *items], strict=False):
        if is_reply(item):
            if is_reply(before):
                found[-1].append(item)
            else:
                found.append([item])
    return found


def spoken(items: list[Row], names: dict[str, str]) -> str:
    """Return what a model writes so that a client gets these items."""
    text = ""
    for item in items:
        if item.get("type") == "reasoning":
            parts = item["summary"] or item.get("content") or []
            text += f"<think>\n{''.join(part['text'] for part in parts)}\n</think>\n\n"
        elif item.get("role") == "assistant":
            text += "".join(part["text"] for part in item["content"])
        else:
            name = names.get(item["name"], item["name"])
            text += f'\n<tool_call>\n{{"name": "{name}", "arguments": {item["arguments"]}}}\n</tool_call>'
    return text


def echoed(client: str, items: list[Row]) -> list[Row]:
    """Return our items as a client sends them back."""
    if client == "codex":
        return items
    return [{name: value for name, value in item.items() if name not in ("id", "status")} for item in items]


class Player:
    """Plays one thread against a gateway, as its client would."""

    def __init__(self, stack: Stack, http: httpx.AsyncClient) -> None:
        self.stack = stack
        self.http = http
        self.ours: dict[str, list[list[Row]]] = {}

    async def play(self, row: Row, reply: list[Row] | None) -> httpx.Response:
        """Send a request with our items in the places of the recorded ones."""
        thread = thread_of(row)
        known = self.ours.setdefault(thread, [])
        items, calls, used = [], {}, 0
        body = row["body"]
        theirs = replies_of(body["input"])
        for item in body["input"]:
            if is_reply(item):
                if item is theirs[used][0]:
                    items += echoed(row["client"], known[used])
                    old = [part["call_id"] for part in theirs[used] if "call_id" in part]
                    new = [part["call_id"] for part in known[used] if "call_id" in part]
                    assert len(old) == len(new), (row["step"], known[used])
                    calls |= dict(zip(old, new, strict=True))
                if item is theirs[used][-1]:
                    used += 1
            else:
                items.append(item | ({"call_id": calls[item["call_id"]]} if "call_id" in item else {}))
        names = {
            tool["name"]: f"{space['name']}__{tool['name']}"
            for space in body.get("tools") or []
            for tool in space.get("tools", [])
        }
        self.stack.say(spoken(reply, names) if reply else "All done.")
        answer = await self.http.post("/v1/responses", json={**body, "input": items}, headers=row["headers"])
        if answer.status_code == 200:
            last = json.loads(answer.text.rpartition("data: ")[2])
            assert last["type"] == "response.completed"
            if row["step"] not in SIDE:
                self.ours[thread] = [*known[: len(theirs)], last["response"]["output"]]
        else:
            self.stack.replies.pop()
        return answer


def thread_of(row: Row) -> str:
    return row["headers"].get("thread-id") or row["headers"]["x-session-id"]


def words_of(row: Row) -> list[str]:
    """Return what a history says, without the ids that a client may change."""
    return [json.dumps({name: item[name] for name in item if name != "id"}) for item in row["body"]["input"]]


def next_reply(row: Row, later: list[Row]) -> list[Row] | None:
    """Return what the client says in a later request that this one was answered, or None if it never does."""
    asked, count = words_of(row), len(replies_of(row["body"]["input"]))
    for other in later:
        replies = replies_of(other["body"]["input"])
        if thread_of(other) == thread_of(row) and words_of(other)[: len(asked)] == asked and len(replies) > count:
            return replies[count]
    return None


async def test_every_turn_is_what_a_person_marked(start: Starter) -> None:
    stack: Stack = await start(context_length=16384)
    turns: dict[str, Turn] = {}
    found = rows()
    assert FOLLOWS.keys() | SIDE.keys() <= {row["step"] for row in found}
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, timeout=60) as http:
        player = Player(stack, http)
        for number, row in enumerate(found):
            answer = await player.play(row, next_reply(row, found[number + 1 :]))
            assert answer.status_code == 200, (row["step"], answer.text)
            turns[row["step"]] = stack.turns()[-1]
    recorded = {turn.id: turn for turn in stack.turns()}
    turns = {step: recorded[turn.id] for step, turn in turns.items()}
    followed = {before: step for step, before in (FOLLOWS | RESULTS).items()}
    for step, turn in turns.items():
        assert turn.kind == ("side" if step in SIDE else "main"), step
        if step in FOLLOWS:
            before = turns[FOLLOWS[step]]
            assert turn.session_id == before.session_id, step
            carried = turn.messages[len(before.messages)]
            assert message_digest(carried) == message_digest(before.response_message), step
            assert carried.get("id", before.id) == before.id
            assert turn.messages[: len(before.messages)] == before.messages, step
            assert before.next_state == turn.messages[len(before.messages) + 1 :], step
        if step in RESULTS:
            before = turns[RESULTS[step]]
            (result,) = turn.messages[len(before.messages) + 1 : -1]
            assert (before.next_state, result["role"]) == ([result], "tool"), step
        if step not in followed and step not in ("slow-1", "r503-1"):
            assert turn.next_state is None, step
    one_thread = {turns[f"autocompact-{number}"].session_id for number in range(1, 8)}
    assert len(one_thread) == 1
    assert turns["sub-3"].session_id != turns["sub-2"].session_id == turns["sub-4"].session_id
    assert turns["tui-2"].session_id != turns["tui-1"].session_id


async def test_a_replay_has_the_same_prompt(start: Starter) -> None:
    stack: Stack = await start(context_length=16384)
    found = [
        row
        for row in rows()
        if row["step"].startswith(("basic", "res1", "res2", "pretty", "sub-1", "sub-2", "responses-"))
    ]
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, timeout=60) as http:
        player = Player(stack, http)
        for number, row in enumerate(found):
            reply = next_reply(row, found[number + 1 :])
            known = dict(player.ours)
            await player.play(row, reply)
            after, player.ours = player.ours, known
            first = stack.turns()[-1]
            await player.play(row, reply)
            assert stack.turns()[-1].prompt_ids == first.prompt_ids
            player.ours = after
