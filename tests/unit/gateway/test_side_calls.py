"""Calls that agent clients make for themselves are side turns; what a user asks stays a main turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from openclaw.ledger.records import Turn
from openclaw.messages import classify
from openclaw.messages.classify import RULES, Asked, side_kind
from tests.helpers.conversations import World, assistant, user

CAPTURED = Path(__file__).resolve().parents[2] / "data" / "client_calls.jsonl"
CALLS: list[dict[str, Any]] = [json.loads(line) for line in CAPTURED.read_text().splitlines()]
"""Excerpts of what the clients sent to a stand-in that recorded it."""


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call['client']}-{call['step']}")
def test_captured_calls(call: dict[str, Any]) -> None:
    assert side_kind(call["messages"], Asked(call["tools"], call["headers"])) == call["kind"]


def test_every_client_has_captured_calls_of_both_sorts() -> None:
    for client in ("claude", "codex", "hermes", "opencode", "qwen"):
        kinds = {call["kind"] for call in CALLS if call["client"] == client}
        assert None in kinds
        assert "title" in kinds or client == "qwen"
    assert {rule.kind for rule in RULES} == {call["kind"] for call in CALLS} - {None}


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize(
    "words", sorted({rule.words for rule in RULES if rule.words} | {"hi", "You are a title generator."})
)
def test_a_user_may_say_what_a_client_says(words: str, tools: bool) -> None:
    for system in ([], [{"role": "system", "content": "You are a helpful assistant."}]):
        assert side_kind([*system, user(f"{words} and more")], Asked(tools)) is None


@pytest.mark.parametrize("call", [call for call in CALLS if call["kind"] == "title"], ids=lambda call: call["client"])
def test_with_the_wrong_tools_a_title_prompt_is_a_users(call: dict[str, Any]) -> None:
    if not any("thread_source" in value for value in call["headers"].values()):
        assert side_kind(call["messages"], Asked(True, call["headers"])) is None


async def test_a_suggestion_call_gives_no_reply_a_next_state(world: World) -> None:
    suggest = next(call["messages"] for call in CALLS if call["kind"] == "suggestion")
    system, request = suggest[0], user("list the files")
    _, first = await world.turn([system, request], assistant("a.py"), tools=True)
    context, _ = await world.turn([system, request, assistant("a.py"), suggest[-1]], assistant("run it"), tools=True)
    assert (context.kind, context.next_state_of) == ("side", None)
    context, _ = await world.turn([system, request, assistant("a.py"), user("and sizes")], assistant("3"), tools=True)
    assert (context.kind, context.next_state_of) == ("main", first.id)


@pytest.mark.parametrize("late", [False, True], ids=["before the user's words", "after them"])
@pytest.mark.parametrize(
    "call",
    [call for call in CALLS if call["kind"] in ("suggestion", "compaction", "title")],
    ids=lambda call: f"{call['client']}-{call['step']}",
)
async def test_without_a_list_the_reaction_is_what_the_conversation_goes_on_with(
    world: World, monkeypatch: pytest.MonkeyPatch, call: dict[str, Any], late: bool
) -> None:
    """A client that nobody listed adds words of its own to the whole history; then the user goes on, or had gone on."""
    monkeypatch.setattr(classify, "RULES", ())
    system, *_, asking = call["messages"]
    history = [system, user("list the files"), assistant("a.py")]
    gone_on = [*history, user("no, with their sizes")]
    more = [*gone_on, assistant("3 kB"), user("thanks")]

    async def turn(messages: list[dict[str, Any]], reply: str, *, tools: bool = True) -> Turn:
        return (await world.turn(messages, assistant(reply), session="here", tools=tools))[1]

    first = await turn(history[:2], "a.py")
    if not late:
        await turn([*history, asking], "run it", tools=call["tools"])
    second = await turn(gone_on, "3 kB")
    if late:
        await turn(more, "You are welcome.")
        await turn([*history, asking], "run it", tools=call["tools"])
        assert world.next_state(second) == more[-1:]
    assert world.next_state(first) == gone_on[-1:]


@pytest.mark.parametrize(
    "call",
    [call for call in CALLS if call["kind"] in ("suggestion", "compaction", "title", "memory")],
    ids=lambda call: f"{call['client']}-{call['step']}",
)
async def test_without_a_list_what_a_client_asks_at_the_end_is_no_reaction(
    world: World, monkeypatch: pytest.MonkeyPatch, call: dict[str, Any]
) -> None:
    """The conversation ends after the client's own request, so nothing else ever follows the reply."""
    monkeypatch.setattr(classify, "RULES", ())
    usual = next(other for other in CALLS if other["client"] == call["client"] and other["kind"] is None)
    history = [usual["messages"][0], user("list the files"), assistant("a.py")]
    _, turn = await world.turn(history[:2], history[2], session="here", tools=usual["tools"], streamed=True)
    asking = [call["messages"][0], *history[1:], call["messages"][-1]]
    await world.turn(asking, assistant("run it"), session="here", tools=call["tools"], streamed=True)
    assert world.next_state(turn) is None
