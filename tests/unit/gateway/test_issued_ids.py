"""The ids that we gave out name a turn, whatever a client did to the words around them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from openclaw.config.bounds import CHOICES
from openclaw.owners import issued_turn, new_completion_id, tool_call_id, turn_id
from tests.helpers.conversations import World, assistant, tool, user
from tests.unit.gateway.conftest import Stack

RESTARTED = pytest.mark.parametrize("restarted", [False, True])
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
TOOLS: Any = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]


def calling(completion: str, text: str | None = None, choice: int = 0) -> dict[str, Any]:
    """Return an assistant message with a call of ours."""
    message = assistant(text, ("read", '{"path": "a"}'))
    message["tool_calls"][0]["id"] = tool_call_id(completion, choice, 0)
    return message


async def two_equal_conversations(world: World, **options: Any) -> list[tuple[str, dict[str, Any]]]:
    """Hold two conversations with the same words, up to a tool call; return the turns and their replies."""
    made = []
    for _ in range(2):
        completion = new_completion_id()
        reply = calling(completion)
        await world.turn([user("read a")], reply, turn_id=completion, **options)
        made.append((completion, reply))
    return made


@pytest.mark.parametrize("choice", range(CHOICES.most))
@pytest.mark.parametrize("number", [0, 1, 255, 300])
def test_a_call_names_the_turn_of_its_choice(choice: int, number: int) -> None:
    completion = new_completion_id()
    call = tool_call_id(completion, choice, number)
    assert call.isalnum()
    assert len(call) <= 40
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": call}]}
    assert issued_turn(message) == turn_id(completion, choice)
    assert issued_turn({"role": "assistant", "id": turn_id(completion, choice)}) == turn_id(completion, choice)


@pytest.mark.parametrize("foreign", [None, "", "call_1", "call" + "a" * 24, "call" + "a" * 34, "call" + "g" * 35, 7])
def test_an_id_of_another_form_names_no_turn(foreign: Any) -> None:
    assert issued_turn({"role": "assistant", "id": foreign, "tool_calls": [{"id": foreign}]}) == ""


@RESTARTED
async def test_equal_conversations_are_told_apart(world: World, restarted: bool) -> None:
    (first, reply), (second, other) = await two_equal_conversations(world)
    assert world.ledger.turns.get(first).session_id != world.ledger.turns.get(second).session_id
    for turn, message in ((second, other), (first, reply)):
        if restarted:
            await world.restart()
        context, _ = await world.turn([user("read a"), message, tool(f"of {turn}")], assistant("done"))
        assert context.next_state_of == turn
        assert context.session_id == world.ledger.turns.get(turn).session_id
        if restarted:
            await world.restart()
        followed = [user("read a"), message, tool(f"of {turn}"), assistant("done"), user("thanks")]
        again, _ = await world.turn(followed, assistant("welcome"))
        assert again.session_id == context.session_id
    assert world.count("ambiguous") == 0


@RESTARTED
async def test_a_text_reply_after_equal_calls_belongs_to_its_own_conversation(world: World, restarted: bool) -> None:
    """The words are the same to the end; only the id of the first call differs."""
    made = await two_equal_conversations(world)
    texts = {}
    for turn, message in made:
        _, texts[turn] = await world.turn([user("read a"), message, tool("A")], assistant("done"))
    if restarted:
        await world.restart()
    for turn, message in reversed(made):
        asked = [user("read a"), message, tool("A"), assistant("done"), user("thanks")]
        context, _ = await world.turn(asked, assistant("welcome"))
        assert context.next_state_of == texts[turn].id


@RESTARTED
@pytest.mark.parametrize("session", ["s", None], ids=["stated", "plain"])
async def test_rewritten_words_do_not_hide_a_turn(world: World, restarted: bool, session: str | None) -> None:
    """A client that drops a block of the first message, or renames an unknown tool, sends the ids unchanged."""
    completion = new_completion_id()
    reply = calling(completion, "I shall read.")
    _, turn = await world.turn([user("date: today"), user("read a")], reply, session=session, turn_id=completion)
    if restarted:
        await world.restart()
    changed = {**reply, "content": "Got it. I shall read."}
    changed["tool_calls"] = [{**reply["tool_calls"][0], "function": {"name": "invalid", "arguments": "{}"}}]
    context, _ = await world.turn([user("read a"), changed, tool("A")], assistant("done"), session=session)
    assert (context.session_id, context.next_state_of) == (turn.session_id, turn.id)
    assert world.next_state(turn) == [tool("A")]


@RESTARTED
async def test_another_owners_id_names_nothing(world: World, restarted: bool) -> None:
    completion = new_completion_id()
    reply = calling(completion)
    _, turn = await world.turn([user("read a")], reply, turn_id=completion, owner="alice")
    if restarted:
        await world.restart()
    for owner in ("bob", "alice/tests", ""):
        context, _ = await world.turn([user("read a"), reply, tool("A")], assistant("done"), owner=owner)
        assert (context.relation, context.next_state_of) == ("new", None)
    assert world.next_state(turn) is None


async def test_a_reply_that_a_client_split_gives_one_next_state(world: World) -> None:
    completion = new_completion_id()
    reply = assistant(None, ("read", "{}"), ("read", "{}"))
    for number, call in enumerate(reply["tool_calls"]):
        call["id"] = tool_call_id(completion, 0, number)
    _, turn = await world.turn([user("read both")], reply, turn_id=completion)
    one, two = ({**reply, "tool_calls": [call]} for call in reply["tool_calls"])
    context, _ = await world.turn([user("read both"), one, tool("A"), two, tool("B")], assistant("done"))
    assert context.next_state_of == turn.id
    assert world.next_state(turn) == [tool("B")]
    assert world.count("conflict") == 0


async def test_the_last_calling_turn_stays_in_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long talk after a tool call is known without the ledger."""
    completion = new_completion_id()
    talk = [user("read a"), calling(completion)]
    _, turn = await world.turn(talk[:1], talk[1], turn_id=completion)
    looked_up = []
    find = world.ledger.sessions.nodes_of_conversations
    monkeypatch.setattr(
        world.ledger.sessions,
        "nodes_of_conversations",
        lambda *args, **named: looked_up.append(args) or find(*args, **named),
    )
    talk.append(tool("A"))
    for number in range(40):
        context, _ = await world.turn(talk, assistant(f"reply {number}"))
        assert context.session_id == turn.session_id
        talk += [assistant(f"reply {number}"), user(f"question {number}")]
    assert looked_up == []


async def test_equal_conversations_without_ids_are_counted(world: World) -> None:
    for _ in range(2):
        await world.turn([user("hi")], assistant("hello"))
    again = [user("hi"), assistant("hello"), user("and now?")]
    contexts = [(await world.turn(again, assistant("well")))[0] for _ in range(2)]
    assert len({context.next_state_of for context in contexts}) == 2, "each turn has got one next state"
    assert world.count("ambiguous") == 1, "the second request had one turn left"


async def test_ids_of_a_served_reply_name_its_turn(stack: Stack) -> None:
    """Both choices of two equal requests call a tool; each result finds the choice that asked for it."""
    stack.say(*[CALL] * 4)
    ids = {}
    for _ in range(2):
        reply = await stack.client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "read a"}], tools=TOOLS, temperature=0, n=2
        )
        for choice in reply.choices:
            assert choice.message.tool_calls is not None
            ids[choice.message.tool_calls[0].id] = turn_id(reply.id, choice.index)
    assert len(ids) == 4
    for call, turn in reversed(ids.items()):
        stack.say("done")
        function = {"name": "read", "arguments": json.dumps({"path": "a"})}
        history: list[Any] = [
            {"role": "user", "content": "read a"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": call, "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": call, "content": f"result for {call}"},
        ]
        await stack.client.chat.completions.create(model="m", messages=history, tools=TOOLS)
        assert stack.ledger.turns.get(turn).next_state == history[-1:]
