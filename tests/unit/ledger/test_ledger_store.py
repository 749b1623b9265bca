"""The ledger keeps records exactly, moves rows only along their tables, and counts what it leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.testkit.ledger_records import USER_NEXT, judged_sample, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.ledger.codec import pack_floats, pack_ids, unpack_floats, unpack_ids
from openclaw.ledger.exceptions import LedgerVersionError, TransitionError, UnknownRecordError
from openclaw.ledger.records import SampleState, TurnState, Verdict, VersionSpan, Vote
from openclaw.ledger.schema import VALID_SAMPLE_TRANSITIONS, VALID_TURN_TRANSITIONS, VERSION
from openclaw.ledger.store import Ledger
from openclaw.owners import LOCAL
from openclaw.training.samples import make_sample


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def test_turn_comes_back_exactly(ledger: Ledger) -> None:
    turn = make_turn(
        tools=[{"type": "function", "function": {"name": "read"}}],
        chat_template_kwargs={"enable_thinking": True},
        weight_versions=[VersionSpan("3", 0, 1), VersionSpan("4", 1, 3)],
        response_message={"role": "assistant", "content": "lone surrogate \ud83d, umlaut ä"},
    )
    ledger.turns.record(turn)
    assert ledger.turns.get(turn.id) == turn


@given(st.lists(st.integers(0, 2**31 - 1)), st.lists(st.floats(allow_nan=False)))
def test_arrays_survive_exactly(ids: list[int], values: list[float]) -> None:
    assert unpack_ids(pack_ids(ids)) == ids
    assert unpack_floats(pack_floats(values)) == values


def test_sample_comes_back_exactly_with_free_attributes(ledger: Ledger) -> None:
    turn = make_turn()
    ledger.turns.record(turn)
    ledger.turns.record_next_state(turn.id, USER_NEXT, 102.0)
    sample = make_sample(turn, -1.0, score=-1, teacher_log_probs=[-0.3, -0.7, -1e-9], metadata={"hint": "no bold"})
    sample.payload_text = "free"  # type: ignore[attr-defined]
    record_judged(ledger, turn.id, Verdict(score=-1, hint="no bold"), [sample], None)
    [found] = ledger.samples.claim(0, 1)
    assert found.metadata.pop("ledger_id") == 1
    assert found.metadata.pop("turn_id") == turn.id
    assert (found.metadata.pop("person"), found.metadata.pop("origin")) == (LOCAL, "live")
    assert found.metadata.pop("baseline") == 0.0
    assert found.to_dict() == sample.to_dict()
    assert found.tokens == turn.prompt_ids + turn.response_ids
    assert found.rollout_log_probs == turn.response_logprobs


def test_verdict_comes_back_exactly(ledger: Ledger) -> None:
    ledger.turns.record(make_turn())
    ledger.turns.record_next_state("turn-0", USER_NEXT, 102.0)
    verdict = Verdict(
        score=0,
        hint="write plain text",
        votes=(Vote("prm", "(c) \\boxed{0}", 0, None, 0.5), Vote("hint", "…", 1, "write plain text", 0.25)),
        teacher_log_probs=(-0.1, -0.2, -1 / 3),
        teacher_versions=("7",),
        seconds=0.75,
    )
    record_judged(ledger, "turn-0", verdict, [], "score_zero")
    [judged] = ledger.judging.judged("session")
    assert judged.verdict == verdict
    assert judged.turn.reason == "score_zero"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"kind": "side"}, "side"), ({"finish_reason": "abort"}, "aborted"), ({"reason": "eval_mode"}, "eval_mode")],
)
def test_turns_that_cannot_be_trained_are_excluded_and_counted(ledger: Ledger, changes: dict, reason: str) -> None:
    ledger.turns.record(make_turn(**changes))
    assert ledger.views.counts()["turn_reasons"] == {reason: 1}
    assert ledger.turns.get("turn-0").state == "excluded"
    with pytest.raises(TransitionError, match="excluded -> pending"):
        ledger.turns.record_next_state("turn-0", USER_NEXT, 102.0)


def test_side_turn_leaves_the_main_turn_waiting(ledger: Ledger) -> None:
    ledger.turns.record(make_turn("main"))
    ledger.turns.record(make_turn("side", kind="side", index=1))
    assert ledger.turns.get("main").state == "waiting"
    assert ledger.sessions.nodes("session", 1)[0] == 2


def test_session_end_keeps_the_last_turn_and_resuming_revives_it(ledger: Ledger) -> None:
    ledger.turns.record(make_turn())
    ledger.sessions.end("session", 200.0)
    assert ledger.turns.get("turn-0").reason == "no_next_state"
    assert ledger.turns.get("turn-0").state == "ended"
    ledger.turns.record_next_state("turn-0", USER_NEXT, 300.0)
    [pending] = ledger.judging.pending(10)
    assert (pending.turn.next_state, pending.turn.reason) == (USER_NEXT, None)
    assert pending.turn.state == "pending"


def test_next_state_and_verdict_are_final(ledger: Ledger) -> None:
    judged_sample(ledger, "turn-0")
    with pytest.raises(TransitionError, match="judged -> pending"):
        ledger.turns.record_next_state("turn-0", USER_NEXT, 103.0)
    with pytest.raises(TransitionError, match="judged -> judged"):
        record_judged(ledger, "turn-0", Verdict(score=1), [], "again")
    assert ledger.samples.ready_count() == 1
    with pytest.raises(UnknownRecordError, match="nobody"):
        ledger.turns.record_next_state("nobody", USER_NEXT, 103.0)


def test_waiting_turn_cannot_be_judged(ledger: Ledger) -> None:
    ledger.turns.record(make_turn())
    with pytest.raises(TransitionError, match="waiting -> judged"):
        record_judged(ledger, "turn-0", Verdict(score=1), [make_sample(make_turn(), 1.0, score=1)], None)
    assert ledger.views.counts()["samples"] == {}


def test_verdict_without_sample_needs_a_reason(ledger: Ledger) -> None:
    ledger.turns.record(make_turn())
    ledger.turns.record_next_state("turn-0", USER_NEXT, 102.0)
    with pytest.raises(ValueError, match="samples or a reason"):
        record_judged(ledger, "turn-0", Verdict(score=0), [], None)
    assert ledger.turns.get("turn-0").state == "pending"


def test_sample_with_wrong_lengths_leaves_the_turn_pending(ledger: Ledger) -> None:
    turn = make_turn()
    ledger.turns.record(turn)
    ledger.turns.record_next_state(turn.id, USER_NEXT, 102.0)
    sample = make_sample(turn, 1.0, score=1)
    sample.loss_mask = [1]
    with pytest.raises(ValueError, match="loss_mask"):
        record_judged(ledger, turn.id, Verdict(score=1), [sample], None)
    assert ledger.turns.get(turn.id).state == "pending"


def test_turn_with_missing_logprob_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="3 response ids but 1 logprobs"):
        ledger.turns.record(make_turn(response_logprobs=[-0.1]))


def test_postponed_turn_waits_and_is_counted(tmp_path: Path) -> None:
    now = 1000.0
    ledger = Ledger(tmp_path / "ledger.sqlite", clock=lambda: now)
    ledger.turns.record(make_turn())
    ledger.turns.record_next_state("turn-0", USER_NEXT, 102.0)
    ledger.judging.postpone("turn-0", "connection refused", 1010.0)
    assert ledger.judging.pending(10) == []
    now = 1010.0
    [pending] = ledger.judging.pending(10)
    assert pending.attempts == 1
    assert ledger.judging.pending(10, exclude=["turn-0"]) == []
    assert ledger.views.counts()["judge_attempts_failed"] == 1


def test_surplus_stays_ready_and_claims_repeat(ledger: Ledger) -> None:
    for number in range(5):
        judged_sample(ledger, f"turn-{number}")
    first = [sample.metadata["ledger_id"] for sample in ledger.samples.claim(0, 3)]
    assert first == [1, 2, 3]
    assert [sample.metadata["ledger_id"] for sample in ledger.samples.claim(0, 3)] == first
    assert ledger.samples.ready_count() == 2
    assert [sample.metadata["ledger_id"] for sample in ledger.samples.claim(1, 3)] == [4, 5]


def test_dropped_sample_is_counted_and_cannot_be_dropped_again(ledger: Ledger) -> None:
    judged_sample(ledger, "turn-0")
    ledger.samples.drop(1, "stale", 0)
    assert ledger.views.counts()["sample_reasons"] == {"stale": 1}
    with pytest.raises(TransitionError, match="dropped -> dropped"):
        ledger.samples.drop(1, "stale", 0)


def test_raw_query_cannot_leave_the_table(ledger: Ledger) -> None:
    judged_sample(ledger, "turn-0")
    with pytest.raises(TransitionError, match="illegal transition in samples"), ledger.transaction() as connection:
        connection.execute("UPDATE samples SET state = 'trained'")
    with pytest.raises(TransitionError, match="illegal transition in turns"), ledger.transaction() as connection:
        connection.execute("UPDATE turns SET state = 'waiting'")
    assert ledger.views.counts()["samples"] == {"ready": 1}


def test_feedback_to_live_uses_the_first_push_of_a_step(ledger: Ledger) -> None:
    judged_sample(ledger, "turn-0")
    ledger.samples.claim(0, 1)
    assert ledger.samples.feedback_to_live_seconds() == []
    ledger.samples.record_step(0, "1", 109.0, 110.0)
    ledger.samples.record_step(0, "2", 109.0, 150.0)
    assert ledger.samples.feedback_to_live_seconds() == [8.0]
    assert ledger.samples.live_weight_version() == "1"
    ledger.samples.reconcile(-1)
    assert ledger.samples.feedback_to_live_seconds() == []
    assert ledger.samples.live_weight_version() is None


def test_finished_session_is_closed_once(ledger: Ledger) -> None:
    turn = make_turn()
    ledger.turns.record(turn)
    ledger.sessions.end("session", 110.0)
    ledger.turns.record_next_state("turn-0", USER_NEXT, 120.0)
    assert ledger.judging.finished_sessions(10) == []
    record_judged(ledger, "turn-0", Verdict(score=0), [], "score_zero")
    assert ledger.judging.finished_sessions(10) == ["session"]
    sample = make_sample(turn, 0.1, score=0)
    ledger.turns.record(make_turn("turn-1"))
    ledger.sessions.end("session", 125.0)
    ledger.turns.record_next_state("turn-1", USER_NEXT, 126.0)
    assert not ledger.judging.close_session("session", [("turn-0", sample)], 127.0), "a turn waits for the judge"
    record_judged(ledger, "turn-1", Verdict(score=0), [], "score_zero")
    assert ledger.judging.close_session("session", [("turn-0", sample)], 130.0)
    assert not ledger.judging.close_session("session", [("turn-0", sample)], 130.0)
    assert ledger.judging.finished_sessions(10) == []
    assert ledger.samples.ready_count() == 1
    assert ledger.turns.get("turn-0").reason is None


def test_reopening_finds_everything(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "ledger.sqlite"
    first = Ledger(path)
    judged_sample(first, "turn-0")
    first.close()
    second = Ledger(path)
    assert second.samples.ready_count() == 1
    assert second.views.counts()["turns"] == {"judged": 1}


def test_file_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path)
    with ledger.transaction() as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    ledger.close()
    with pytest.raises(LedgerVersionError, match="OPENCLAW_LEDGER"):
        Ledger(path)


def test_export_shows_turn_verdict_sample_and_step(ledger: Ledger) -> None:
    judged_sample(ledger, "turn-0")
    ledger.turns.record(make_turn("turn-1", session_id="other"))
    ledger.samples.claim(0, 1)
    ledger.samples.record_step(0, "1", 109.0, 110.0)
    first, second = ledger.views.turn_records()
    assert (first.verdict or Verdict()).score == 1
    assert [(s.state, s.rollout_id, s.weight_version, s.live_at) for s in first.samples] == [("leased", 0, "1", 110.0)]
    assert (second.verdict, second.samples) == (None, [])
    assert [record.turn.id for record in ledger.views.turn_records("other")] == ["turn-1"]
    assert ledger.views.step_records() == [
        {"rollout_id": 0, "weight_version": "1", "trained_at": 109.0, "live_at": 110.0, "person": None, "samples": 1}
    ]


@settings(max_examples=30, deadline=None)
@given(count=st.integers(0, 6), limit=st.integers(1, 6))
def test_pending_turns_come_oldest_first(tmp_path_factory: pytest.TempPathFactory, count: int, limit: int) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("ledger") / "ledger.sqlite")
    for number in range(count):
        ledger.turns.record(make_turn(f"turn-{number}"))
        ledger.turns.record_next_state(f"turn-{number}", USER_NEXT, 102.0)
    expected = [f"turn-{number}" for number in range(count)][:limit]
    assert [pending.turn.id for pending in ledger.judging.pending(limit)] == expected
    ledger.close()


def test_tables_name_every_state() -> None:
    assert set(VALID_TURN_TRANSITIONS) == set(get_args(TurnState))
    assert set(VALID_SAMPLE_TRANSITIONS) == set(get_args(SampleState))
    for table in (VALID_TURN_TRANSITIONS, VALID_SAMPLE_TRANSITIONS):
        assert all(targets <= set(table) for targets in table.values())
