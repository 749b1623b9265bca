"""Sessions: whose conversation, whose turn, and which messages are the next state."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openclaw.messages.classify import following, is_internal, side_kind
from openclaw.sessions import is_retry, stated_identity
from tests.helpers.conversations import SYSTEM, World, assistant, talk_past_memory, tool, user

INTERNAL = {"role": "user", "content": "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nx\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"}
INTERNAL_PARTS = {"role": "user", "content": [{"type": "text", "text": INTERNAL["content"]}]}
RUNTIME = "hello\n\nRuntime: agent=main | session=agent:main:x | sessionId=from-runtime | host=vm"
OPENCLAW = {"role": "system", "content": "<!-- x -->\nYou are a personal assistant running inside OpenClaw."}


@pytest.mark.parametrize(
    ("headers", "body", "first", "expected"),
    [
        ({"x-session-id": "a", "session_id": "b:1"}, "c", RUNTIME, ("a", "header")),
        ({"session_id": "b:1"}, "c", RUNTIME, ("c", "body")),
        ({"session_id": "b:12", "x-session-affinity": "d:1"}, None, RUNTIME, ("b", "affinity")),
        ({"thread-id": "t", "session-id": "tree", "session_id": "b"}, None, RUNTIME, ("t", "header")),
        ({"session-id": "tree"}, None, RUNTIME, ("tree", "affinity")),
        ({"x-session-affinity": "d"}, None, RUNTIME, ("d", "affinity")),
        ({}, None, RUNTIME, ("from-runtime", "runtime")),
        ({}, None, f"hi\n\nRuntime: agent=main | sessionId={'x' * 257}", (None, "fingerprint")),
        ({}, None, "hello", (None, "fingerprint")),
        ({}, None, "I wrote sessionId=nothing", (None, "fingerprint")),
        ({}, None, f"{RUNTIME}\nis what I found in a log", (None, "fingerprint")),
    ],
)
def test_order_of_trust(headers: dict[str, str], body: str | None, first: str, expected: tuple[Any, str]) -> None:
    identity = stated_identity(headers, body, [OPENCLAW, user(first), assistant("x"), user("y")])
    assert (identity.session_id, identity.origin) == expected


@pytest.mark.parametrize("before", [[], [SYSTEM], [user("OpenClaw")], [assistant("OpenClaw")]])
def test_a_runtime_line_that_another_clients_user_pasted_names_no_session(before: list[dict[str, Any]]) -> None:
    assert stated_identity({}, None, [*before, user(RUNTIME)]).session_id is None


def test_every_source_names_a_session_of_the_owner() -> None:
    messages = [OPENCLAW, user(RUNTIME)]
    assert stated_identity({"x-session-id": "@bob:a"}, None, messages, "alice").session_id == "@alice:@bob:a"
    assert stated_identity({}, "a", messages, "alice").session_id == "@alice:a"
    assert stated_identity({"session_id": "a:2"}, None, messages, "alice").session_id == "@alice:a"
    assert stated_identity({}, None, messages, "alice").session_id == "@alice:from-runtime"
    assert stated_identity({}, None, messages).session_id == "from-runtime"


@pytest.mark.parametrize(
    ("messages", "kind"),
    [
        ([user("hi")], None),
        ([SYSTEM, user("[Sat 2026-11-21 07:45 UTC] hi"), INTERNAL], None),
        ([SYSTEM, user("[Sat 2026-11-21 08:01 UTC] [OpenClaw heartbeat poll]"), INTERNAL_PARTS], "heartbeat"),
        (
            [SYSTEM, user("Follow the heartbeat monitor scratch context when provided."), assistant("a"), tool("b")],
            "heartbeat",
        ),
        ([SYSTEM, user("[cron:c4c0 probe] say hi")], "cron"),
        ([SYSTEM, user("hi"), assistant("x"), user("Pre-compaction memory flush. Store")], "memory_flush"),
        ([{"role": "system", "content": "You are a context summarization assistant. Your"}, user("x")], "compaction"),
        (
            [
                user(
                    "[Sat 2026-11-21 08:05 UTC] [Queued user message from a previous active turn; x]\n[OpenClaw heartbeat poll]"
                )
            ],
            "heartbeat",
        ),
        ([user("[Sat 2026-11-21 08:05 UTC] [Queued user message from a previous active turn; x]\nhello")], None),
        ([user("[Queued user message from a previous active turn; x]\n[OpenClaw heartbeat poll]\n\nhello")], None),
        ([user("[Queued user message from a previous active turn; x]\nhello\n\n[cron:1 x] go")], "cron"),
        ([user("report\n\nRuntime: agent=main | session=agent:main:subagent:7 | host=vm")], "subagent"),
        (
            [user("hi\n\nRuntime: agent=main | session=agent:main:cron:7 | host=vm"), assistant("x"), user("go on")],
            "cron",
        ),
        ([user("hi\n\nRuntime: agent=main | session=agent:main:internal-session-effects:7-8")], "internal"),
        ([user("[OpenClaw heartbeat poll]"), assistant("ok"), user("a real question")], None),
    ],
)
def test_main_and_side(messages: list[dict[str, Any]], kind: str | None) -> None:
    assert side_kind(messages) == kind


@pytest.mark.parametrize(("count", "retry"), [("0", False), ("2", True), ("", False), ("many", False)])
def test_the_libraries_of_openai_say_when_they_try_again(count: str, retry: bool) -> None:
    assert is_retry({"x-stainless-retry-count": count}) == retry


def test_next_state_is_everything_new_and_nothing_internal() -> None:
    messages = [user("q"), assistant("a"), tool("1"), tool("2"), INTERNAL]
    assert following(messages, 1).messages == [tool("1"), tool("2")]
    messages = [user("q"), assistant("a"), user("[OpenClaw heartbeat poll]"), assistant("ok"), user("thanks")]
    assert following(messages, 1).messages == [user("thanks")]
    messages = [user("q"), assistant("a"), user("b"), assistant("c"), user("d")]
    assert following(messages, 1).messages == [user("b")]
    assert following([*messages[:2], INTERNAL], 1).messages == []
    assert is_internal(INTERNAL_PARTS)


async def test_a_tool_loop_gives_each_turn_its_results(world: World) -> None:
    start = [SYSTEM, user("read both")]
    calls = assistant("", ("read", '{"path": "a"}'), ("read", '{"path":"b"}'))
    _, first = await world.turn([*start, INTERNAL], calls, session="s")
    back = assistant(None, ("read", '{"path":"a"}'), ("read", '{"path": "b"}'), ids="other")
    history = [*start, back, tool("A"), tool("B")]
    context, second = await world.turn([*history, INTERNAL], assistant("Done. "), session="s")
    assert context.next_state_of == first.id
    assert world.next_state(first) == [tool("A"), tool("B")]
    assert world.ledger.turns.get(first.id).state == "pending"
    await world.turn([*history, assistant("Done."), user("thanks"), INTERNAL], assistant("ok"), session="s")
    assert world.next_state(second) == [user("thanks")]
    assert [world.ledger.turns.get(turn.id).index for turn in (first, second)] == [0, 1]


async def test_plain_clients_are_told_apart_by_what_they_say(world: World) -> None:
    first, turn_a = await world.turn([user("q1")], assistant("a1"))
    other, _ = await world.turn([user("q2")], assistant("a1"))
    assert first.session_id != other.session_id
    again, turn_b = await world.turn([user("q1"), assistant("a1"), user("no bold")], assistant("a2"))
    assert (again.session_id, again.next_state_of) == (first.session_id, turn_a.id)
    assert world.next_state(turn_a) == [user("no bold")]
    edited, _ = await world.turn([user("q1"), assistant("a1"), user("edited")], assistant("a3"))
    assert (edited.session_id, edited.next_state_of) == (first.session_id, turn_a.id)
    third, _ = await world.turn(
        [user("q1"), assistant("a1"), user("no bold"), assistant("a2"), user("good")], assistant("a4")
    )
    assert third.next_state_of == turn_b.id
    assert world.ledger.views.counts()["sessions"] == 2


async def test_two_plain_clients_with_the_same_words_each_get_a_session(world: World) -> None:
    one, turn_one = await world.turn([user("q")], assistant("a"))
    two, turn_two = await world.turn([user("q")], assistant("a"))
    assert one.session_id != two.session_id
    replies = [await world.turn([user("q"), assistant("a"), user(text)], assistant("b")) for text in ("x", "y")]
    assert {context.next_state_of for context, _ in replies} == {turn_one.id, turn_two.id}
    assert {context.session_id for context, _ in replies} == {one.session_id, two.session_id}


async def test_a_regenerated_reply_leaves_the_first_one_waiting(world: World) -> None:
    _, first = await world.turn([user("q")], assistant("a1"), session="s")
    again, second = await world.turn([user("q")], assistant("a2"), session="s")
    assert again.next_state_of is None
    chosen, _ = await world.turn([user("q"), assistant("a1"), user("this one")], assistant("b"), session="s")
    assert chosen.next_state_of == first.id
    assert world.next_state(second) is None


async def test_side_turns_neither_wait_nor_answer(world: World) -> None:
    _, main = await world.turn([user("q")], assistant("a"), session="s")
    heartbeat = [user("q"), assistant("a"), user("[OpenClaw heartbeat poll]")]
    side, side_turn = await world.turn(heartbeat, assistant("ok"), session="s")
    assert (side.kind, side.next_state_of) == ("side", None)
    assert world.ledger.turns.get(side_turn.id).reason == "side"
    after, _ = await world.turn([*heartbeat, assistant("ok"), user("thanks")], assistant("b"), session="s")
    assert after.next_state_of == main.id
    assert world.next_state(main) == [user("thanks")]


async def test_the_clients_word_on_the_kind_counts(world: World) -> None:
    context, _ = await world.turn([user("hi")], assistant("a"), session="s", stated_kind="side")
    assert context.kind == "side"
    context, _ = await world.turn([user("[cron:1 x] y")], assistant("a"), session="s", stated_kind="main")
    assert context.kind == "main"


async def test_compaction_keeps_the_link(world: World) -> None:
    _, last = await world.turn([SYSTEM, user("long"), assistant("x"), user("more")], assistant("reply"), session="s")
    compacted = [SYSTEM, user("<summary>…</summary>"), assistant("reply"), user("next"), INTERNAL]
    context, _ = await world.turn(compacted, assistant("b"), session="s")
    assert context.next_state_of == last.id


@pytest.mark.parametrize("session", ["s", None])
async def test_a_restart_loses_no_feedback(world: World, session: str | None) -> None:
    context, turn = await world.turn([user("q")], assistant("a"), session=session)
    await world.restart()
    again, second = await world.turn([user("q"), assistant("a"), user("b")], assistant("c"), session=session)
    assert (again.session_id, again.next_state_of) == (context.session_id, turn.id)
    assert second.index == 1


async def test_an_unknown_session_is_read_from_the_ledger(world: World) -> None:
    _, turn = await world.turn([user("q")], assistant("a"), session="s")
    await world.restart()
    asked = [
        world.sessions.begin({"x-session-id": "s"}, [user("q"), assistant("a"), user(text)]) for text in ("x", "y", "z")
    ]
    contexts = await asyncio.gather(*asked)
    assert {context.next_state_of for context in contexts} == {turn.id}
    assert world.next_state(turn) == [user("z")]
    assert world.count("next_state") == 1
    assert "revived" in world.events
    for context in contexts:
        world.sessions.abandon(context)


async def test_idle_sessions_end_and_come_back(world: World) -> None:
    _, turn = await world.turn([user("q")], assistant("a"), session="s")
    busy = await world.sessions.begin({"x-session-id": "busy"}, [user("q")])
    world.now += 61
    assert await world.sessions.sweep() == 1
    assert world.ledger.turns.get(turn.id).state == "ended"
    assert await world.sessions.sweep() == 0
    world.sessions.abandon(busy)
    context, _ = await world.turn([user("q"), assistant("a"), user("still here")], assistant("b"), session="s")
    assert context.next_state_of == turn.id
    assert world.ledger.turns.get(turn.id).state == "pending"


async def test_a_session_ends_when_the_client_says_so(world: World) -> None:
    _, turn = await world.turn([user("q")], assistant("a"), session="s", done=True)
    assert world.ledger.turns.get(turn.id).state == "ended"
    assert "ended_done" in world.events


async def test_memory_is_bounded_and_nothing_is_lost(world: World) -> None:
    await world.restart(max_sessions=5)
    turns = [(await world.turn([user(f"q{n}")], assistant("a"), session=f"s{n}"))[1] for n in range(20)]
    assert len(world.sessions) == 5
    context, _ = await world.turn([user("q0"), assistant("a"), user("b")], assistant("c"), session="s0")
    assert context.next_state_of == turns[0].id
    assert await world.sessions.sweep() == 0
    world.now += 61
    assert await world.sessions.sweep() == 20
    assert world.ledger.turns.get(turns[1].id).state == "ended"


async def test_many_sessions_talk_past_a_small_memory(world: World) -> None:
    await talk_past_memory(world, sessions=300, memory=30)


async def test_a_cancelled_request_does_not_lose_the_next_state(world: World) -> None:
    _, turn = await world.turn([user("q")], assistant("a"), session="s")
    task = asyncio.create_task(world.sessions.begin({"x-session-id": "s"}, [user("q"), assistant("a"), user("b")]))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await world.sessions.close()
    assert world.next_state(turn) == [user("b")]


async def test_a_repeated_request_is_not_the_next_state_of_its_own_reply(world: World) -> None:
    first = [SYSTEM, user("Tidy up.")]
    await world.turn(first, assistant("Done."), session="s")
    second = [*first, assistant("Done."), user("And the kitchen.")]
    _, turn = await world.turn(second, assistant("Done."), session="s")
    again = await world.sessions.begin({"x-session-id": "s"}, second)
    assert again.next_state_of is None
    world.sessions.abandon(again)
    following = await world.sessions.begin(
        {"x-session-id": "s"}, [*second, assistant("Done."), user("Thanks, that is all.")]
    )
    assert following.next_state_of == turn.id


async def test_a_session_that_cannot_be_ended_holds_up_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.restart(max_sessions=2)
    turns = [(await world.turn([user(f"q{n}")], assistant("a"), session=f"s{n}"))[1] for n in range(4)]
    world.now += 61
    end, broken = world.ledger.sessions.end, {"s0", "s2"}

    def end_session(session_id: str, at: float) -> None:
        if session_id in broken:
            raise OSError("disk full")
        end(session_id, at)

    monkeypatch.setattr(world.ledger.sessions, "end", end_session)
    with pytest.raises(OSError, match="disk full"):
        await world.sessions.sweep()
    assert [world.ledger.turns.get(turn.id).state for turn in turns] == ["waiting", "ended", "waiting", "ended"]
    broken.clear()
    assert await world.sessions.sweep() == 2
    assert {world.ledger.turns.get(turn.id).state for turn in turns} == {"ended"}
