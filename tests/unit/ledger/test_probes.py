"""Which turns become probes: by parts of sessions, fairly, within bounds; and what a forgotten session leaves."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.ledger.commands import salvage
from openclaw.ledger.conversations import write_conversations
from openclaw.ledger.probes import BLOCK, RECENT, Candidate, choose_probes, drawn, part_of, reservoir_order
from openclaw.ledger.records import PROBE, Feedback, Verdict, suffixed, turn_of_pass
from openclaw.ledger.store import Ledger
from openclaw.lessons.lesson import UNDER_LESSON
from openclaw.owners import stored_id
from tests.helpers.probes import judged, leased_batch, probes

SHARE = 0.1
KEY = bytes(32)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def drawn_session(ledger: Ledger, number: int, *, wanted: bool = True, owner: str = "") -> str:
    """Return a session whose first part is drawn (or not)."""
    found = (stored_id(owner, f"s{each}") for each in range(number * 1000, number * 1000 + 1000))
    return next(each for each in found if drawn(part_of(each, "t", 0), SHARE, ledger.probes.draw_key()) == wanted)


def test_the_draw_is_the_share_and_the_same_everywhere() -> None:
    names = [part_of(f"session-{number}", "t", 0) for number in range(20000)]
    assert sum(drawn(name, SHARE, KEY) for name in names) == pytest.approx(2000, abs=150)
    assert all(drawn(name, 0.2, KEY) for name in names if drawn(name, SHARE, KEY))
    assert [name for name in names[:40] if drawn(name, SHARE, KEY)] == ["session-4#0", "session-15#0"]


def test_no_client_can_tell_which_sessions_are_drawn(ledger: Ledger, tmp_path: Path) -> None:
    """The key is of one ledger: made once, kept in its file, and copied only with the file."""
    key = ledger.probes.draw_key()
    again, other = Ledger(ledger.path), Ledger(tmp_path / "other.sqlite")
    assert (len(key), again.probes.draw_key()) == (32, key)
    assert ledger.path.stat().st_mode & 0o777 == 0o600
    names = [part_of(f"session-{number}", "t", 0) for number in range(2000)]
    drawn_here = [name for name in names if drawn(name, SHARE, key)]
    there = sum(drawn(name, SHARE, other.probes.draw_key()) for name in drawn_here)
    assert there < len(drawn_here) / 2, "of the names that one ledger draws another draws its share"
    judged(ledger, "turn", 1)
    salvage(ledger.path, tmp_path / "salvaged.sqlite")
    assert Ledger(tmp_path / "salvaged.sqlite").probes.draw_key() == key
    write_conversations(ledger, tmp_path / "export.jsonl")
    exported = (tmp_path / "export.jsonl").read_bytes()
    assert exported
    assert all(form not in exported for form in (key, key.hex().encode(), b64encode(key)))


def test_turns_in_a_row_are_drawn_together_and_long_sessions_have_several_parts() -> None:
    assert {part_of("s", "t", index) for index in range(BLOCK)} == {"s#0"}
    long = [drawn(part_of("one long session", "t", index * BLOCK), SHARE, KEY) for index in range(400)]
    assert 20 <= sum(long) <= 60


def test_an_owner_keeps_most_of_the_feedback_whatever_the_draw(ledger: Ledger) -> None:
    session = drawn_session(ledger, 1)
    reserved = 0
    for number in range(40):
        turn = make_turn(f"t{number}", session_id=session, index=number % BLOCK)
        found = ledger.probes.becomes_probe(turn, SHARE)
        reserved += found
        judged(ledger, f"t{number}", 1, session=session, index=number % BLOCK, probe=found)
    assert 6 <= reserved <= 8  # a fifth of 40
    assert not ledger.probes.becomes_probe(make_turn("x", session_id=drawn_session(ledger, 2, wanted=False)), SHARE)
    assert not ledger.probes.becomes_probe(make_turn("x", session_id=session), 0.0)


def test_a_probe_that_is_judged_again_stays_one(ledger: Ledger) -> None:
    """Both versions were compared on it, so it must not be trained now, whatever the bound says."""
    probes(ledger, 1)
    assert ledger.feedback.record(Feedback(turn_id="probe-liked-0", created_at=103.0, thumbs="down"), USER_NEXT).applied
    (pending,) = ledger.judging.pending(9)
    assert pending.turn.state == "pending"
    assert [each.turn_id for each in ledger.probes.candidates(0, 10**9, 0, 64)] == ["probe-disliked-0"]
    assert ledger.probes.becomes_probe(pending.turn, SHARE)
    assert not ledger.probes.becomes_probe(pending.turn, 0.0)
    record_judged(ledger, "probe-liked-0", Verdict(score=-1, score_source="feedback"), [], PROBE)
    assert [each.liked for each in ledger.probes.candidates(0, 10**9, 0, 64)] == [False, False]


@pytest.mark.parametrize("own_ids", [True, False], ids=["copies", "texts"])
@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_a_turn_is_a_probe_in_all_passes_or_in_none(ledger: Ledger, order: tuple[int, ...], own_ids: bool) -> None:
    """Whatever the order of the judge, and although the bound on an owner's share depends on what was judged before."""
    for number in order:
        for each in range(40):
            name = turn_of_pass(f"turn-{each}", number) if own_ids else f"log-{each}-{number}"
            session, ids = suffixed(stored_id("alice", f"s{each // 2}"), number), [9, each, 4]
            index, turns = each % 2, {"response_ids": ids}
            turn = make_turn(name, session_id=session, index=index, **turns)
            judged(ledger, name, 1, session=session, index=index, probe=ledger.probes.becomes_probe(turn, 0.4), ids=ids)
    found: dict[int, set[str | None]] = {}
    for record in ledger.views.turn_records():
        found.setdefault(record.turn.response_ids[1], set()).add(record.turn.reason)
    assert {len(reasons) for reasons in found.values()} == {1}
    assert 0 < sum(PROBE in reasons for reasons in found.values()) < 40
    parts = {part_of(each.turn.session_id, each.turn.id, each.turn.index) for each in ledger.views.turn_records()}
    assert len(parts) == 20, "the passes of a session are one witness of the gate"


def test_a_client_names_no_pass(ledger: Ledger) -> None:
    """Otherwise each session ``x~2`` would follow what the client has seen of ``x``."""
    judged(ledger, "one", 1, session="x", probe=True)
    turn = make_turn("two", session_id="x~2", response_ids=[5, 6, 7])
    assert part_of("x~2", "two", 0) == "x~2#0"
    assert ledger.probes.becomes_probe(turn, 0.5) == drawn("x~2#0", 0.5, ledger.probes.draw_key())
    judged(ledger, "chatcmpl-3", 1, session="y~2")
    assert ledger.probes.becomes_probe(make_turn("y", session_id="y", response_ids=[5, 6, 7]), 1.0)


def test_the_bound_is_per_owner(ledger: Ledger) -> None:
    alice, bob = drawn_session(ledger, 1, owner="alice"), drawn_session(ledger, 2, owner="bob")
    for number in range(12):
        judged(ledger, f"a{number}", 1, session=stored_id("alice", f"other-{number}"))
    assert ledger.probes.becomes_probe(make_turn("x", session_id=alice), SHARE)
    assert ledger.probes.becomes_probe(make_turn("x", session_id=drawn_session(ledger, 1, owner="alice/tests")), SHARE)
    assert not ledger.probes.becomes_probe(make_turn("x", session_id=bob), SHARE)


def test_an_owner_has_probes_however_many_others_talk(ledger: Ledger) -> None:
    """The turns of others came between, so that none of the newest ones is the owner's."""
    for number in range(12):
        judged(ledger, f"a{number}", 1, session=stored_id("alice", f"other-{number}"))
    for number in range(RECENT):
        judged(ledger, f"b{number}", 1, session=stored_id(f"bob{number}", "s"))
    assert ledger.probes.becomes_probe(make_turn("x", session_id=drawn_session(ledger, 1, owner="alice")), SHARE)


def test_candidates_of_a_person_are_found_among_many(ledger: Ledger) -> None:
    for number, owner in enumerate(("alice", "alice/child", "alice2", "")):
        judged(ledger, f"t{number}", 1, session=stored_id(owner, "s"), probe=True)
    for person, own in (("alice", {"t0", "t1"}), ("alice2", {"t2"}), ("", {"t3"})):
        assert {each.turn_id for each in ledger.probes.candidates(0, 10**9, 0, 4, person)} == own


def test_turns_under_lessons_count_for_the_bound(ledger: Ledger) -> None:
    alice = drawn_session(ledger, 1, owner="alice")
    for number in range(2):
        judged(ledger, f"p{number}", 1, session=stored_id("alice", f"probe-{number}"), probe=True)
    assert not ledger.probes.becomes_probe(make_turn("x", session_id=alice), SHARE)
    for number in range(12):
        ledger.turns.record(make_turn(f"a{number}", session_id=stored_id("alice", f"told-{number}")))
        ledger.turns.record_next_state(f"a{number}", USER_NEXT, 102.0)
        record_judged(ledger, f"a{number}", Verdict(score=1), [], UNDER_LESSON)
    assert ledger.probes.becomes_probe(make_turn("x", session_id=alice), SHARE)


def test_candidates_are_the_probes_of_a_window(ledger: Ledger) -> None:
    probes(ledger, 3)
    judged(ledger, "trained", 1)
    judged(ledger, "stated", -1, probe=True, source="feedback", session="s", index=BLOCK, reply=5)
    found = ledger.probes.candidates(0, 10**9, 0, 64)
    assert [each.number for each in found] == sorted([1, 2, 3, 4, 5, 6, 8], key=reservoir_order)
    assert Candidate("stated", 8, "s#1", "", liked=False, stated=True, trained=False, tokens=9) in found
    assert {each.turn_id for each in ledger.probes.candidates(3, 5, 0, 64)} == {"probe-disliked-1", "probe-liked-1"}


def test_turns_of_earlier_steps_are_compared_after_the_probes(ledger: Ledger) -> None:
    leased_batch(ledger, 0)
    leased_batch(ledger, 1)
    probes(ledger, 1)
    judged(ledger, "ready", 1)
    ledger.samples.mark_trained(0)

    def found(rollout_id: int) -> list[str]:
        return [each.turn_id for each in ledger.probes.candidates(0, 10**9, rollout_id, 64)]

    assert [name.rpartition("-")[0] for name in found(1)] == ["probe-disliked", "probe-liked", *["turn-0"] * 4]
    assert len(found(0)) == 2
    assert len(found(2)) == 10
    ledger.decisions.quarantine(1)
    assert len(found(2)) == 6
    trained = [each.trained for each in ledger.probes.candidates(0, 10**9, 1, 64)]
    assert trained == [False] * 2 + [True] * 4


def test_no_owner_and_no_opinion_displaces_another(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy owner's liked turns do not keep a quiet owner's, or the disliked ones, out."""
    monkeypatch.setattr("openclaw.ledger.probes.CHUNK", 8)
    for number in range(60):
        judged(ledger, f"busy-{number}", 1, session=stored_id("busy", f"s{number}"), probe=True)
    judged(ledger, "quiet", 1, session=stored_id("quiet", "s"), probe=True)
    judged(ledger, "disliked", -1, session=stored_id("busy", "last"), probe=True)
    found = ledger.probes.candidates(0, 10**9, 0, 4)
    assert {"quiet", "disliked"} <= {each.turn_id for each in found}
    assert "quiet" in [each.turn_id for each in choose_probes(found, 4, 10**6)]


def test_new_turns_displace_few_old_ones() -> None:
    """Half as many new turns displace a third of the choice, wherever they are put."""
    for most in (32, 64):
        before = set(sorted(range(1, 401), key=reservoir_order)[:most])
        after = set(sorted(range(1, 601), key=reservoir_order)[:most])
        assert len(before & after) == pytest.approx(most * 2 / 3, abs=2)


def test_a_forgotten_session_takes_its_probe_and_scores_along(ledger: Ledger) -> None:
    probes(ledger, 1)
    ledger.decisions.record(0, "step", "1", "w", scores={"probe-liked-0": -1.0, "probe-disliked-0": -2.0})
    ledger.sessions.forget("probe-liked-0")
    assert [each.turn_id for each in ledger.probes.candidates(0, 10**9, 0, 64)] == ["probe-disliked-0"]
    assert ledger.decisions.accepted_scores(4) == {1: {"probe-disliked-0": -2.0}}
    late = {"probe-liked-0": -3.0}  # answered after it was forgotten
    ledger.decisions.record(1, "refused", "2", "w", serving=(1, late))
    assert ledger.decisions.accepted_scores(4) == {1: {"probe-disliked-0": -2.0}}


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        turn_id=st.uuids().map(str),
        number=st.integers(0, 99),
        part=st.just("p"),
        owner=st.sampled_from(["", "alice", "bob"]),
        liked=st.booleans(),
        stated=st.booleans(),
        trained=st.booleans(),
        tokens=st.integers(1, 50),
    ),
    max_size=40,
).map(lambda found: [replace(each, number=-number) for number, each in enumerate(found)])


@given(CANDIDATES, st.integers(1, 12), st.integers(0, 400))
def test_the_choice_keeps_its_bounds(candidates: list[Candidate], most: int, tokens: int) -> None:
    chosen = choose_probes(candidates, most, tokens)
    assert len({each.turn_id for each in chosen}) == len(chosen)
    assert sum(each.tokens for each in chosen) <= tokens
    for opinion in (True, False):
        group = [each for each in chosen if each.liked == opinion]
        assert len(group) <= most
        if sum(each.tokens for each in candidates) <= tokens:
            waiting = [each for each in candidates if each.liked == opinion]
            assert len(group) == min(most, len(waiting))
            counts = {name: sum(each.owner == name for each in group) for name in ("", "alice", "bob")}
            left = {each.owner for each in waiting if each not in group}
            assert all(counts[name] >= max(counts.values()) - 1 for name in left)
            for name in counts:  # the first of each owner
                own = [each for each in waiting if each.owner == name]
                assert [each for each in group if each.owner == name] == own[: counts[name]]


def test_a_small_budget_is_shared_by_both_opinions() -> None:
    candidates = [Candidate(str(n), -n, "p", "", n < 10, False, False, 10) for n in range(20)]
    chosen = choose_probes(candidates, 10, 60)
    assert [each.liked for each in chosen] == [True, False] * 3


def test_a_probe_and_a_quarantined_sample_count_as_repeats(ledger: Ledger) -> None:
    """Trained again under another id, they would check themselves, or be trained twice once they are released."""
    judged(ledger, "first", 1, session="s", probe=True, conversation=b"same")
    assert not ledger.turns.gave_sample_before(ledger.turns.get("first"))
    ledger.turns.record(make_turn("again", session_id="s", conversation=b"same"))
    assert ledger.turns.gave_sample_before(ledger.turns.get("again"))
    judged(ledger, "third", 1, session="t", conversation=b"same")
    ledger.samples.claim(0, 1)
    ledger.decisions.quarantine(0)
    ledger.turns.record(make_turn("fourth", session_id="t", conversation=b"same"))
    assert ledger.turns.gave_sample_before(ledger.turns.get("fourth"))
