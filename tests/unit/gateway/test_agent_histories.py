"""Real agent clients send a conversation back in their own way; each main request finds the reply before it.

`tests/data/agent_clients.jsonl` holds consecutive main requests of five clients, as chat messages: Claude Code, Codex and
half of opencode speak other dialects, whose blocks became messages one to one. Long texts are shortened, each to a text
of its own. No request has a session id. The replies are those that the next request carries, as a server would have sent
them: with white space, a thought, and arguments in another order and spacing.
"""

from __future__ import annotations

import asyncio
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from openclaw.owners import new_completion_id, tool_call_id
from tests.helpers.conversations import World

Request = list[dict[str, Any]]
CLIENTS = ("claude", "codex", "hermes", "opencode", "qwen")


def chains(client: str) -> dict[str, list[Request]]:
    """Return the conversations of a client by name, each as its requests."""
    found: dict[str, list[Request]] = {}
    path = Path(__file__).parents[2] / "data/agent_clients.jsonl"
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        if row["client"] == client:
            found.setdefault(row["chain"], []).append(row["messages"])
    return found


def as_sent(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a reply as a server sent it, before the client took it apart."""
    content = reply["content"]
    text = content if isinstance(content, str) else "".join(part["text"] for part in content or [])
    sent: dict[str, Any] = {"role": "assistant", "content": f"\n\n{text} \n", "reasoning_content": "Hm."}
    if "tool_calls" in reply:
        sent["tool_calls"] = deepcopy(reply["tool_calls"])
        for call in sent["tool_calls"]:
            arguments = call["function"]["arguments"]
            values = json.loads(arguments) if isinstance(arguments, str) else arguments
            call["function"]["arguments"] = json.dumps(dict(reversed(values.items())), indent=1)
    return sent


def with_our_ids(requests: list[Request]) -> tuple[list[Request], list[str]]:
    """Return the requests with call ids as this gateway issues them, and the completion that answers each request."""
    completions = [new_completion_id() for _ in requests]
    ids: dict[str, str] = {}
    for request, after, completion in zip(requests, requests[1:], completions, strict=False):
        for number, call in enumerate(after[len(request)].get("tool_calls", [])):
            ids[call["id"]] = tool_call_id(completion, 0, number)
    text = json.dumps(requests)
    for theirs, ours in ids.items():
        text = text.replace(json.dumps(theirs), json.dumps(ours))
    return json.loads(text), completions


async def replay(world: World, requests: list[Request], completions: list[str]) -> None:
    """Send a conversation; check that each request gives the turn before it its next state."""
    before = None
    for number, (request, completion) in enumerate(zip(requests, completions, strict=True)):
        last = number + 1 == len(requests)
        reply = {"role": "assistant", "content": "end"} if last else as_sent(requests[number + 1][len(request)])
        context, turn = await world.turn(request, reply, turn_id=completion)
        assert context.next_state_of == before, number
        before = turn.id


@pytest.mark.parametrize("client", CLIENTS)
async def test_each_request_finds_the_reply_before_it_by_its_words(tmp_path: Path, client: str) -> None:
    for name, requests in chains(client).items():
        world = World(tmp_path / f"{name}.sqlite")
        await replay(world, requests, [f"turn-{number}" for number in range(len(requests))])
        await world.close()


@pytest.mark.parametrize("client", CLIENTS)
async def test_each_request_finds_the_reply_before_it_by_its_ids(world: World, client: str) -> None:
    """Every conversation twice, all at once: equal words do not confuse what the ids say."""
    conversations = [with_our_ids(requests) for requests in chains(client).values() for _ in range(2)]
    calling = [each for each in conversations if "tool_calls" in each[0][1][len(each[0][0])]]
    assert calling
    await asyncio.gather(*(replay(world, *each) for each in calling))
    assert world.count("ambiguous") == 0


@pytest.mark.parametrize("client", CLIENTS)
async def test_the_ids_name_a_turn_after_a_restart(world: World, client: str) -> None:
    """The client also renamed the function and merged words of its own into the reply."""
    for requests in chains(client).values():
        requests, completions = with_our_ids(requests)
        reply = requests[1][len(requests[0])]
        if "tool_calls" not in reply:
            continue
        await world.turn(requests[0], as_sent(reply), turn_id=completions[0])
        await world.restart()
        reply["content"] = "Got it."
        for call in reply["tool_calls"]:
            call["function"]["name"] = "invalid"
        context, _ = await world.turn(requests[1], {"role": "assistant", "content": "end"})
        assert context.next_state_of == completions[0]
        await world.restart()
