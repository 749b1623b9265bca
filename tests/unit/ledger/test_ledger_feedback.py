"""Feedback is kept in any case and becomes the next state of a turn that has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from openclaw.ledger.exceptions import FeedbackArrivedError, TransitionError, UnknownRecordError
from openclaw.ledger.feedback import SUPERSEDED, FeedbackReceipt
from openclaw.ledger.records import Feedback, Verdict
from openclaw.ledger.store import Ledger
from openclaw.training.samples import make_sample
from tests.helpers.ledger_records import USER_NEXT, make_turn

THUMB = Feedback(turn_id="turn-0", created_at=110.0, thumbs="up")
WORDS = [{"role": "user", "content": "Too long."}]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.record_turn(make_turn())
    return ledger


@pytest.mark.parametrize("ended", [False, True])
def test_feedback_is_the_next_state_of_a_turn_without_one(ledger: Ledger, ended: bool) -> None:
    if ended:
        ledger.end_session("session", 105.0)
    given = Feedback(turn_id="turn-0", created_at=110.0, thumbs="down", score=0.5, text="Too long.", source="chat")
    assert ledger.record_feedback(given, WORDS) == FeedbackReceipt(True, False, "pending", None)
    turn = ledger.turn("turn-0")
    assert (turn.state, turn.signal, turn.next_state, turn.next_state_at) == ("pending", "feedback", WORDS, 110.0)
    [kept] = ledger.feedback("turn-0")
    assert (kept.applied, kept.thumbs, kept.score, kept.text, kept.source) == (True, "down", 0.5, "Too long.", "chat")


def test_feedback_to_a_pending_turn_counts_beside_its_next_state(ledger: Ledger) -> None:
    ledger.record_next_state("turn-0", USER_NEXT, 105.0)
    assert ledger.record_feedback(THUMB, WORDS).applied
    assert (ledger.turn("turn-0").next_state, ledger.turn("turn-0").signal) == (USER_NEXT, "next_state")
    [pending] = ledger.pending_turns(5)
    assert [item.thumbs for item in pending.feedback] == ["up"]


def test_no_verdict_is_committed_that_has_not_seen_the_feedback(ledger: Ledger) -> None:
    ledger.record_next_state("turn-0", USER_NEXT, 105.0)
    ledger.record_feedback(THUMB, WORDS)
    with pytest.raises(FeedbackArrivedError, match="turn-0"):
        ledger.record_judged("turn-0", Verdict(score=0), [], "score_zero", feedback_seen=0)
    assert ledger.turn("turn-0").state == "pending"
    ledger.record_judged("turn-0", Verdict(score=0), [], "score_zero", feedback_seen=1)


@pytest.fixture
def judged(ledger: Ledger) -> Ledger:
    """A ledger whose turn was judged +1 and waits as a ready sample."""
    ledger.record_next_state("turn-0", USER_NEXT, 105.0)
    turn = ledger.turn("turn-0")
    ledger.record_judged("turn-0", Verdict(score=1), [make_sample(turn, 1.0, score=1)], None)
    return ledger


def test_feedback_after_judging_replaces_samples_that_wait(judged: Ledger) -> None:
    """Finding A8: a thumbs-down was ignored though the sample had not been trained."""
    receipt = judged.record_feedback(replace(THUMB, thumbs="down"), WORDS)
    assert receipt == FeedbackReceipt(True, False, "pending", None)
    assert judged.counts()["sample_reasons"] == {SUPERSEDED: 1}
    assert judged.claim_samples(0, 5) == []
    [pending] = judged.pending_turns(5)
    assert [item.thumbs for item in pending.feedback] == ["down"]
    judged.record_judged(
        "turn-0", Verdict(score=-1), [make_sample(pending.turn, -1.0, score=-1)], None, feedback_seen=1
    )
    [sample] = judged.claim_samples(0, 5)
    assert sample.reward == -1.0
    assert (judged.outcome("turn-0").sample, judged.outcome("turn-0").score) == ("leased", -1)


def test_feedback_on_a_turn_without_a_sample_has_it_judged_again(ledger: Ledger) -> None:
    ledger.record_next_state("turn-0", USER_NEXT, 105.0)
    ledger.record_judged("turn-0", Verdict(score=0), [], "score_zero")
    assert ledger.record_feedback(THUMB, WORDS).applied
    assert (ledger.turn("turn-0").state, ledger.turn("turn-0").reason) == ("pending", None)
    assert ledger.turn("turn-0").next_state == USER_NEXT


def test_feedback_after_a_step_used_the_sample_is_kept_only(judged: Ledger) -> None:
    judged.claim_samples(0, 1)
    receipt = judged.record_feedback(replace(THUMB, thumbs="down"), WORDS)
    assert receipt == FeedbackReceipt(False, False, "judged", None)
    assert [item.applied for item in judged.feedback("turn-0")] == [False]


def test_a_judged_turn_gets_no_second_next_state(judged: Ledger) -> None:
    with pytest.raises(TransitionError, match="judged -> pending"):
        judged.record_next_state("turn-0", USER_NEXT, 300.0)


def test_feedback_to_a_turn_that_is_never_trained_is_kept(ledger: Ledger) -> None:
    ledger.record_turn(make_turn("turn-1", kind="side"))
    receipt = ledger.record_feedback(replace(THUMB, turn_id="turn-1"), WORDS)
    assert receipt == FeedbackReceipt(False, False, "excluded", "side")
    assert len(ledger.feedback("turn-1")) == 1


def test_saying_the_same_again_changes_nothing(ledger: Ledger) -> None:
    ledger.record_feedback(THUMB, WORDS)
    later = replace(THUMB, created_at=200.0, source="phone")
    assert ledger.record_feedback(later, WORDS) == FeedbackReceipt(True, True, "pending", None)
    ledger.record_feedback(replace(later, thumbs="down"), WORDS)
    ledger.record_feedback(later, WORDS)
    assert [item.thumbs for item in ledger.feedback("turn-0")] == ["up", "down", "up"]


def test_feedback_to_nothing_is_refused(ledger: Ledger) -> None:
    with pytest.raises(UnknownRecordError, match="no turn 'none'"):
        ledger.record_feedback(Feedback(turn_id="none", created_at=110.0), WORDS)
    assert ledger.feedback("none") == []
