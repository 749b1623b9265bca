"""What a client that nobody lists asks for itself is nobody's reaction, also when the conversation ends there."""

from __future__ import annotations

from typing import Any

import pytest

from openclaw.sessions.manner import REMEMBERED_WORDS, Manner, PassedOver, manner_of
from tests.helpers.conversations import World, assistant, tool, user

SESSIONS = pytest.mark.parametrize("session", ["s", None], ids=["stated", "plain"])
SYSTEM = {
    "role": "system",
    "content": "You are Forge, an agent for code. It is 10:31.\nWork in small steps.\nFolder: /w",
}
LATER = {**SYSTEM, "content": SYSTEM["content"].replace("10:31", "11:02")}
OTHER = {"role": "system", "content": "You write one line about a chat, for its list."}
START = [SYSTEM, user("list the files"), assistant("a.py and b.py")]
USUAL = {"tools": True, "streamed": True}
WORDS = "Look at the last lines above and write the line that is most likely typed next."
OWN_REQUESTS = [
    pytest.param([*START, user("One line for the side bar.")], {"streamed": True}, id="title-without-tools"),
    pytest.param([*START, user("Themes, as JSON.")], {**USUAL, "structured": True}, id="tags-as-json"),
    pytest.param([OTHER, *START[1:], user("Now.")], USUAL, id="summary-under-other-instructions"),
    pytest.param(
        [*START, user("IMPORTANT: answer in text. Do not call any tools.")], USUAL, id="compaction-that-forbids-tools"
    ),
    pytest.param(
        [*START, user("[NEXT WORDS: Suggest what the user might say next.]")], USUAL, id="suggestion-in-brackets"
    ),
]


@SESSIONS
@pytest.mark.parametrize(("request_", "options"), OWN_REQUESTS)
async def test_an_own_request_at_the_end_is_no_reaction(
    world: World, session: str | None, request_: list[dict[str, Any]], options: dict[str, bool]
) -> None:
    _, turn = await world.turn(START[:2], START[2], session=session, **USUAL)
    context, own = await world.turn(request_, assistant("Files"), session=session, **options)
    assert (context.relation, context.next_state_of) == ("held", None)
    world.now += 61
    await world.sessions.sweep()
    assert (world.next_state(turn), world.next_state(own)) == (None, None)


@SESSIONS
@pytest.mark.parametrize(("request_", "options"), OWN_REQUESTS)
async def test_a_reaction_before_or_after_an_own_request_stays(
    world: World, session: str | None, request_: list[dict[str, Any]], options: dict[str, bool]
) -> None:
    _, first = await world.turn(START[:2], START[2], session=session, **USUAL)
    said = [*START, user("no, with their sizes")]
    await world.turn(request_, assistant("Files"), session=session, **options)
    _, second = await world.turn(said, assistant("3 kB"), session=session, **USUAL)
    await world.turn(request_, assistant("Files again"), session=session, **options)
    assert world.next_state(first) == said[-1:]
    assert world.next_state(second) is None


@SESSIONS
async def test_words_that_a_conversation_went_on_without_are_known_when_they_come_again(
    world: World, session: str | None
) -> None:
    """A request in the very manner of the user's is known by its words once a conversation passed it over."""
    _, first = await world.turn(START[:2], START[2], session=session, **USUAL)
    history = START
    for n, known in enumerate([False, True, True]):
        context, _ = await world.turn([*history, user(WORDS)], assistant("run it"), session=session, **USUAL)
        assert (context.relation == "held") is known
        history = [*history, user(f"step {n}")]
        _, last = await world.turn(history, assistant(f"done {n}"), session=session, **USUAL)
        history = [*history, assistant(f"done {n}")]
    await world.turn([*history, user(WORDS)], assistant("run it"), session=session, **USUAL)
    assert world.next_state(first) == [user("step 0")]
    assert world.next_state(last) is None
    _, elsewhere = await world.turn([user("hello")], assistant("hi"), owner="somebody")
    await world.turn([user("hello"), assistant("hi"), user(WORDS)], assistant("ok"), owner="somebody")
    assert world.next_state(elsewhere) == [user(WORDS)], "another owner's words are not known"


@SESSIONS
async def test_a_user_who_says_so_and_goes_on_loses_nothing(world: World, session: str | None) -> None:
    for request_, options in (tuple(case.values) for case in OWN_REQUESTS):
        _, turn = await world.turn(START[:2], START[2], session=session, **USUAL)
        await world.turn(request_, assistant("Files"), session=session, **options)
        gone_on = [*request_, assistant("Files"), user("good")]
        context, _ = await world.turn(gone_on, assistant("ok"), session=session, **USUAL)
        assert context.next_state_of is not None
        assert world.next_state(turn) == request_[-1:]
        await world.restart()
        session = f"{session}+" if session else None
        START[1]["content"] += "!"


@SESSIONS
@pytest.mark.parametrize(
    ("before", "said", "options"),
    [
        pytest.param(START[:2], [LATER, *START[1:], user("no, all")], USUAL, id="another-time-of-day"),
        pytest.param(START[:2], [*START[1:], user("no, all")], USUAL, id="instructions-that-are-not-repeated"),
        pytest.param(START[1:2], [*START[1:], user("no, all")], {}, id="no-instructions-and-no-tools"),
        pytest.param(START[:2], [*START, user("no, all")], {**USUAL, "structured": False}, id="the-same-manner"),
    ],
)
async def test_the_last_words_of_a_person_are_a_reaction(
    world: World,
    session: str | None,
    before: list[dict[str, Any]],
    said: list[dict[str, Any]],
    options: dict[str, bool],
) -> None:
    _, turn = await world.turn(before, START[2], session=session, **options)
    context, _ = await world.turn(said, assistant("c.py too"), session=session, **options)
    assert context.next_state_of == turn.id
    assert world.next_state(turn) == said[-1:]


async def test_short_words_may_be_said_again_after_an_edit(world: World) -> None:
    for n in range(3):
        history = [user(f"question {n}"), assistant("answer")]
        _, turn = await world.turn(history[:1], history[1])
        if n < 2:
            await world.turn([*history, user("thanks")], assistant("ok"))
            await world.turn([*history, user(f"thanks, but {n}")], assistant("ok"))
        else:
            await world.turn([*history, user("thanks")], assistant("ok"))
            assert world.next_state(turn) == [user("thanks")]


@SESSIONS
async def test_a_tools_result_is_a_next_state_whoever_asks_after_it(world: World, session: str | None) -> None:
    """A client compacts in the middle of a task: the result comes nowhere else, and its own words are no reaction."""
    call = assistant("", ("read", '{"path": "a"}'))
    for number, kind in enumerate(("side", "main")):
        name = f"{session}{number}" if session else None
        asked = [SYSTEM, user(f"read file {number}")]
        _, turn = await world.turn(asked, call, session=name, **USUAL)
        compaction = [*asked, call, tool("hello"), user("Say what was done, for another agent.")]
        context, _ = await world.turn(compaction, assistant("Read a."), session=name, stated_kind=kind, streamed=True)
        assert context.next_state_of == turn.id
        assert world.next_state(turn) == [tool("hello")]
        await world.turn(compaction[:-1], assistant("It says hello."), session=name, **USUAL)
        assert world.next_state(turn) == [tool("hello")]


async def test_a_side_turn_that_goes_on_with_a_result_gives_none(world: World) -> None:
    call = assistant("", ("read", '{"path": "a"}'))
    _, turn = await world.turn([user("read")], call, session="s")
    await world.turn([user("read"), call, tool("hello")], assistant("ok"), session="s", stated_kind="side")
    assert world.next_state(turn) is None


async def test_after_a_restart_no_manner_is_known(world: World) -> None:
    _, turn = await world.turn(START[:2], START[2], session="s", **USUAL)
    await world.restart()
    context, _ = await world.turn([*START, user("One line.")], assistant("Files"), session="s")
    assert context.next_state_of == turn.id


def test_manners() -> None:
    usual = manner_of(START, tools=True, structured=False, streamed=True)
    for other in (
        manner_of([LATER], tools=True, structured=False, streamed=True),
        manner_of([], tools=True, structured=False, streamed=True),
        manner_of([{**SYSTEM, "content": SYSTEM["content"] + "/more"}], tools=True, structured=False, streamed=True),
        manner_of([{**SYSTEM, "content": "Look: " + SYSTEM["content"]}], tools=True, structured=False, streamed=True),
    ):
        assert not other.departs_from(usual)
    assert manner_of([OTHER], tools=True, structured=False, streamed=True).departs_from(usual)
    assert not Manner(tools=True).departs_from(Manner())
    assert not Manner(streamed=True).departs_from(Manner())
    assert not Manner().departs_from(Manner(streamed=True)), "people's own programs mix streams with whole replies"


def test_the_words_passed_over_are_bounded() -> None:
    passed_over, said = PassedOver(), [user(WORDS)]
    for n in range(REMEMBERED_WORDS + 1):
        passed_over.add("me", str(n).encode())
    assert not passed_over.has("me", b"0", said)
    assert passed_over.has("me", b"1", said)
    assert not passed_over.has("you", b"1", said)
    assert not passed_over.has("me", b"1", [user("thanks")])
    passed_over.discard("me", b"1")
    assert not passed_over.has("me", b"1", said)
