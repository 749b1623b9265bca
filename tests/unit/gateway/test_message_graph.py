"""Edits, regenerations, retries, branches and rewritten histories: which turn gets which next state."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from openclaw.ledger.exceptions import LedgerUnavailableError
from openclaw.ledger.records import EPISODE
from openclaw.owners import LOCAL, episode_owner
from openclaw.sessions.earlier_turns import ANOTHER_ANSWER
from tests.helpers.conversations import SYSTEM, World, assistant, tool, user

SESSIONS = pytest.mark.parametrize("session", ["s", None], ids=["stated", "plain"])
HEARTBEAT = user("Follow the heartbeat monitor scratch context.\nCurrent time: 8:01 AM")
LONG = "A reply that is long enough to be recognised by itself, because nobody else was ever told the same. " * 2


@SESSIONS
async def test_an_edited_message_takes_the_place_of_the_first_one(world: World, session: str | None) -> None:
    start = [user("q1"), assistant("a1")]
    _, first = await world.turn(start[:1], start[1], session=session)
    _, left = await world.turn([*start, user("q2")], assistant("a2"), session=session)
    edited, branch = await world.turn([*start, user("q2, edited")], assistant("a2"), session=session)
    assert (edited.relation, edited.next_state_of) == ("replaced", first.id)
    assert edited.session_id == left.session_id
    assert world.next_state(first) == [user("q2, edited")]
    following, _ = await world.turn(
        [*start, user("q2, edited"), assistant("a2"), user("good")], assistant("a3"), session=session
    )
    assert following.next_state_of == branch.id
    assert world.next_state(branch) == [user("good")]
    assert world.next_state(left) is None
    assert (world.count("replaced"), world.count("branch"), world.count("conflict")) == (1, 0, 0)
    assert sum(world.ledger.views.counts()["turns"].values()) == 4


async def test_an_edited_first_message_starts_anew(world: World) -> None:
    _, left = await world.turn([user("q")], assistant("Done."), session="s")
    edited, other = await world.turn([user("q, edited")], assistant("Done."), session="s")
    assert edited.relation == "new"
    following, _ = await world.turn([user("q, edited"), assistant("Done."), user("b")], assistant("c"), session="s")
    assert following.next_state_of == other.id
    assert world.next_state(left) is None


@SESSIONS
async def test_of_two_continuations_the_one_that_went_on_last_counts(world: World, session: str | None) -> None:
    start = [user("q"), assistant("a")]
    _, first = await world.turn(start[:1], start[1], session=session)
    _, one = await world.turn([*start, user("x")], assistant("bx"), session=session)
    _, two = await world.turn([*start, user("y")], assistant("by"), session=session)
    assert world.next_state(first) == [user("y")]
    for turn, question, reply in ((one, "x", "bx"), (two, "y", "by")):
        following, _ = await world.turn(
            [*start, user(question), assistant(reply), user("ok")], assistant("end"), session=session
        )
        assert following.next_state_of == turn.id or world.count("replaced") > 1
        assert world.next_state(turn) == [user("ok")]
        assert world.next_state(first) == [user(question)]
    context, _ = await world.turn([*start, user("z")], assistant("bz"), session=session)
    assert (context.relation, context.next_state_of) == ("branch", None)
    assert world.next_state(first) == [user("y")], "z did not go on"


@pytest.mark.parametrize("policy", ["exclude", "negative"])
async def test_a_regenerated_reply_that_was_passed_over(world: World, policy: Any) -> None:
    await world.restart(regenerated=policy)
    _, first = await world.turn([user("q")], assistant("a1"), session="s")
    again, second = await world.turn([user("q")], assistant("a2"), session="s")
    assert again.relation == "regeneration"
    marked = world.ledger.turns.get(first.id)
    assert (marked.state, marked.signal, marked.reason) == ("waiting", "regenerated", "regenerated")
    chosen, _ = await world.turn([user("q"), assistant("a2"), user("this one")], assistant("b"), session="s")
    assert chosen.next_state_of == second.id
    passed_over = world.ledger.turns.get(first.id)
    if policy == "negative":
        assert (passed_over.state, passed_over.signal) == ("pending", "regenerated")
        assert (passed_over.next_state, passed_over.reason) == ([ANOTHER_ANSWER], None)
        assert world.count("rejected") == 1
    else:
        assert (passed_over.state, passed_over.reason, passed_over.next_state) == ("waiting", "regenerated", None)


async def test_a_regeneration_whose_mark_failed_is_marked_when_it_is_asked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first = await world.turn([user("q")], assistant("a1"), session="s")

    def full(turn_id: str) -> None:
        raise LedgerUnavailableError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(world.ledger.turns, "mark_regenerated", full)
        with pytest.raises(LedgerUnavailableError):
            await world.turn([user("q")], assistant("a2"), session="s")
    assert world.ledger.turns.get(first.id).signal is None
    again, _ = await world.turn([user("q")], assistant("a2"), session="s")
    assert again.relation == "regeneration"
    assert world.ledger.turns.get(first.id).signal == "regenerated"


@pytest.mark.parametrize("policy", ["exclude", "negative"])
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_user_who_goes_back_to_the_first_reply(world: World, policy: Any, restarted: bool) -> None:
    await world.restart(regenerated=policy)
    _, first = await world.turn([user("q")], assistant("a1"), session="s")
    _, second = await world.turn([user("q")], assistant("a2"), session="s")
    if restarted:
        await world.restart(regenerated=policy)
    chosen, _ = await world.turn([user("q"), assistant("a1"), user("this one")], assistant("b"), session="s")
    assert chosen.next_state_of == first.id
    turn = world.ledger.turns.get(first.id)
    assert (turn.state, turn.signal, turn.reason) == ("pending", "next_state", None)
    assert world.next_state(second) is None


@pytest.mark.parametrize(("policy", "state"), [("exclude", "ended"), ("negative", "pending")])
@pytest.mark.parametrize("restarted", [False, True])
async def test_the_end_of_a_session_settles_regenerated_turns(
    world: World, policy: Any, state: str, restarted: bool
) -> None:
    await world.restart(regenerated=policy)
    _, first = await world.turn([user("q")], assistant("a1"), session="s")
    _, second = await world.turn([user("q")], assistant("a2"), session="s")
    if restarted:
        await world.restart(regenerated=policy)
    world.now += 61
    assert await world.sessions.sweep() == 1
    assert world.ledger.turns.get(first.id).state == state
    assert world.ledger.turns.get(first.id).signal == "regenerated"
    assert (world.ledger.turns.get(second.id).state, world.ledger.turns.get(second.id).reason) == (
        "ended",
        "no_next_state",
    )


async def test_a_plain_reply_asked_for_again(world: World) -> None:
    start = [user("q1"), assistant("a1"), user("q2")]
    await world.turn(start[:1], start[1])
    _, first = await world.turn(start, assistant("a2"))
    again, second = await world.turn(start, assistant("a3"))
    assert again.relation == "regeneration"
    await world.turn([*start, assistant("a3"), user("better")], assistant("b"))
    assert world.next_state(second) == [user("better")]
    assert world.ledger.turns.get(first.id).reason == "regenerated"
    assert world.count("branch") == 0


@SESSIONS
async def test_other_instructions_for_the_same_words_are_no_regeneration(world: World, session: str | None) -> None:
    titles = {"role": "system", "content": "Name the topic."}
    _, first = await world.turn([SYSTEM, user("q")], assistant("a"), session=session)
    again, _ = await world.turn([titles, user("q")], assistant("t"), session=session)
    assert again.relation == "new"
    assert world.ledger.turns.get(first.id).reason is None


async def test_a_request_sent_again_by_the_clients_library_is_a_retry(world: World) -> None:
    _, first = await world.turn([user("q")], assistant("a1"), session="s")
    again, _ = await world.turn([user("q")], assistant("a2"), session="s", headers={"x-stainless-retry-count": "1"})
    assert again.relation == "retry"
    assert world.ledger.turns.get(first.id).signal is None


async def test_a_request_sent_again_after_a_lost_reply_is_a_retry(world: World) -> None:
    context, first = await world.turn([user("q")], assistant("a1"), session="s")
    world.sessions.undelivered(context, first.id)
    again, _ = await world.turn([user("q")], assistant("a2"), session="s")
    assert again.relation == "retry"
    assert world.ledger.turns.get(first.id).signal is None


@SESSIONS
async def test_a_request_sent_again_after_a_failure_is_a_retry(world: World, session: str | None) -> None:
    headers = {"x-session-id": session} if session else {}
    _, first = await world.turn([user("q")], assistant("a1"), session=session)
    messages = [user("q"), assistant("a1"), user("b")]
    failed = await world.sessions.begin(headers, messages)
    assert (failed.relation, failed.next_state_of) == ("next_state", first.id)
    world.sessions.abandon(failed)
    _, aborted = await world.turn(messages, assistant("par"), session=session, finish_reason="abort")
    again, answered = await world.turn(messages, assistant("a2"), session=session)
    assert (again.relation, again.session_id) == ("retry", failed.session_id)
    assert world.next_state(first) == [user("b")]
    assert world.ledger.turns.get(aborted.id).reason == "aborted"
    following, _ = await world.turn([*messages, assistant("a2"), user("ok")], assistant("c"), session=session)
    assert following.next_state_of == answered.id
    assert world.count("branch") == 0
    assert world.count("regeneration") == 0


async def test_a_queued_message_is_the_same_message(world: World) -> None:
    """OpenClaw wraps what it could not send the first time."""
    queued = (
        "[Sat 2026-11-21 08:06 UTC] [Queued user message from a previous active turn; preserved as context only.]\n"
        "b\n\nContinue the current task from the existing transcript, preserving completed work."
    )
    _, first = await world.turn([user("q")], assistant("a1"), session="s")
    failed = await world.sessions.begin(
        {"x-session-id": "s"}, [user("q"), assistant("a1"), user("[Sat 2026-11-21 08:05 UTC] b")]
    )
    world.sessions.abandon(failed)
    again, _ = await world.turn([user("q"), assistant("a1"), user(queued)], assistant("a2"), session="s")
    assert (failed.next_state_of, again.relation) == (first.id, "retry")


async def test_a_partial_reply_that_the_user_goes_on_with(world: World) -> None:
    """Stopped in the middle, and continued: the conversation goes on, the stopped turn is never trained."""
    first, stopped = await world.turn([user("q")], assistant("par"), finish_reason="abort")
    following, _ = await world.turn([user("q"), assistant("par"), user("go on")], assistant("b"))
    assert (following.session_id, following.next_state_of) == (first.session_id, None)
    assert (world.ledger.turns.get(stopped.id).state, world.next_state(stopped)) == ("excluded", None)


async def test_compaction_of_a_plain_conversation(world: World) -> None:
    """Without an id, the last exchange says which conversation was shortened."""
    history = [SYSTEM, user("q1"), assistant("a1"), user("q2")]
    first, last = await world.turn(history, assistant("a2"))
    compacted = [SYSTEM, user("<summary>q1</summary>"), user("q2"), assistant("a2"), user("next")]
    context, _ = await world.turn(compacted, assistant("b"))
    assert (context.session_id, context.next_state_of) == (first.session_id, last.id)
    assert world.count("rewritten") == 1


async def test_a_long_reply_is_recognised_by_itself(world: World) -> None:
    """A client that adds context to its question and takes it out again later."""
    first, turn = await world.turn([user("q\n\nContext: x")], assistant(LONG))
    context, _ = await world.turn([user("q"), assistant(LONG), user("next")], assistant("b"))
    assert (context.session_id, context.next_state_of) == (first.session_id, turn.id)


async def test_an_exchange_that_two_conversations_share_is_nobodys(world: World) -> None:
    for start in ("x", "y"):
        await world.turn([user(start), assistant(start), user("thanks")], assistant("Welcome!"))
    context, _ = await world.turn([user("<summary>"), user("thanks"), assistant("Welcome!"), user("z")], assistant("b"))
    assert (context.relation, context.next_state_of) == ("new", None)


async def test_system_messages_may_change(world: World) -> None:
    first, turn = await world.turn([{"role": "system", "content": "It is 8:00."}, user("q")], assistant("a"))
    context, _ = await world.turn(
        [{"role": "system", "content": "It is 8:01."}, user("q"), assistant("a"), user("b")], assistant("c")
    )
    assert (context.session_id, context.next_state_of) == (first.session_id, turn.id)


async def test_a_side_exchange_that_only_the_client_names(world: World) -> None:
    """The extension calls a turn side whose words look like anybody's; it is nobody's next state."""
    _, first = await world.turn([user("q")], assistant("a"), session="s")
    inside = [user("q"), assistant("a"), user("report"), assistant("", ("read", "{}"))]
    await world.turn(inside[:3], inside[3], session="s", stated_kind="side")
    await world.turn([*inside, tool("r")], assistant("reported"), session="s", stated_kind="side")
    context, _ = await world.turn(
        [*inside, tool("r"), assistant("reported"), user("thanks")], assistant("b"), session="s"
    )
    assert context.next_state_of == first.id
    assert world.next_state(first) == [user("thanks")]


@pytest.mark.parametrize("beats", [1, 40])
async def test_heartbeats_in_between_do_not_hide_the_turn_before(world: World, beats: int) -> None:
    history = [user("q"), assistant("a")]
    _, first = await world.turn(history[:1], history[1], session="s")
    for _ in range(beats):
        await world.turn([*history, HEARTBEAT], assistant("NO_REPLY"), session="s")
        history += [user("[Sat 2026-11-21 08:01 UTC] [OpenClaw heartbeat poll]"), assistant("NO_REPLY")]
    context, _ = await world.turn([*history, user("thanks")], assistant("b"), session="s")
    assert (context.kind, context.next_state_of) == ("main", first.id)
    assert world.next_state(first) == [user("thanks")]


@SESSIONS
@pytest.mark.parametrize("turns", [3, 40])
async def test_an_old_branch_is_known_after_a_restart(world: World, session: str | None, turns: int) -> None:
    """Beyond what memory keeps, the ledger says which reply was continued before."""
    history: list[Any] = []
    for n in range(turns):
        await world.turn([*history, user(f"q{n}")], assistant("ok"), session=session)
        history += [user(f"q{n}"), assistant("ok")]
    await world.restart()
    edited, _ = await world.turn([*history[:2], user("edited")], assistant("ok"), session=session)
    assert (edited.relation, edited.next_state_of) == ("branch", None)
    last, _ = await world.turn([*history, user("end")], assistant("ok"), session=session)
    assert last.next_state_of is not None
    assert world.ledger.turns.get(last.next_state_of).messages == history[:-1]


async def test_a_shortened_request_sent_again_is_not_the_next_state_of_its_own_reply(world: World) -> None:
    await world.turn([user("q1"), assistant("x"), user("q2")], assistant("Done."), session="s")
    shortened = [user("<summary>"), assistant("Done."), user("q3")]
    await world.turn(shortened, assistant("Done."), session="s")
    again, _ = await world.turn(shortened, assistant("Done."), session="s")
    assert (again.relation, again.next_state_of) == ("regeneration", None)


async def test_a_reply_of_somebody_else_with_the_same_words_is_not_taken_for_a_turn(world: World) -> None:
    _, other = await world.turn([user("elsewhere")], assistant("Done."), session="s")
    started = [user("q"), assistant("Done."), user("b")]
    _, turn = await world.turn([*started, assistant("c"), user("d")], assistant("e"), session="s")
    following = [*started, assistant("c"), user("d"), assistant("e"), user("f")]
    assert (await world.turn(following, assistant("g"), session="s"))[0].next_state_of == turn.id
    assert world.next_state(other) is None


async def test_a_turn_that_was_deleted_takes_no_next_state(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _, turn = await world.turn([user("q")], assistant("a"), session="s")
    world.ledger.turns.record_next_state(turn.id, [user("from elsewhere")], 1.0)
    context, _ = await world.turn([user("q"), assistant("a"), user("b")], assistant("c"), session="s")
    assert context.next_state_of is None
    assert world.count("conflict") == 1


@SESSIONS
async def test_a_failing_ledger_leaves_the_turn_waiting(
    world: World, session: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, turn = await world.turn([user("q")], assistant("a"), session=session)
    following = [user("q"), assistant("a"), user("b")]
    record = world.ledger.turns.record_next_state

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(world.ledger.turns, "record_next_state", fail)
    with pytest.raises(OSError, match="disk full"):
        await world.turn(following, assistant("c"), session=session)
    monkeypatch.setattr(world.ledger.turns, "record_next_state", record)
    context, _ = await world.turn(following, assistant("c"), session=session)
    assert context.next_state_of == turn.id


async def test_parallel_conversations_with_the_same_words_stay_apart(tmp_path: Path) -> None:
    world = World(tmp_path / "many.sqlite")
    try:
        starts = await asyncio.gather(*(world.turn([user("q")], assistant("a")) for _ in range(6)))
        following = [user("q"), assistant("a"), user("b")]
        replies = await asyncio.gather(*(world.turn(following, assistant("c")) for _ in range(6)))
        assert {context.next_state_of for context, _ in replies} == {turn.id for _, turn in starts}
        await world.restart()
        deeper = [*following, assistant("c"), user("d")]
        ends = await asyncio.gather(*(world.turn(deeper, assistant("e")) for _ in range(6)))
        assert {context.next_state_of for context, _ in ends} == {turn.id for _, turn in replies}
    finally:
        await world.close()


async def test_of_an_episode_a_reply_that_got_lost_is_not_trained_beside_its_retry(world: World) -> None:
    owner, asked = episode_owner(LOCAL, "episode-1"), [user("solve it")]
    _, kept = await world.turn([user("first")], assistant("hm"), session="s", owner=owner)
    context, lost = await world.turn(asked, assistant("done"), session="s", owner=owner)
    _, beside = await world.turn(asked, assistant("done in another way"), session="s", owner=owner)
    assert world.ledger.turns.get(lost.id).reason == EPISODE, "a parallel sample excludes nothing"
    world.sessions.undelivered(context, lost.id)
    _, retry = await world.turn(asked, assistant("done"), session="s", owner=owner)
    reasons = [world.ledger.turns.get(turn.id).reason for turn in (kept, lost, beside, retry)]
    assert reasons == [EPISODE, "aborted", EPISODE, EPISODE]
