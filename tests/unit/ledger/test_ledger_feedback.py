"""Feedback is kept in any case and becomes the next state of a turn that has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.records import Feedback
from openclaw.ledger.store import Ledger
from tests.helpers.ledger_records import USER_NEXT, make_turn

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
    assert ledger.record_feedback(given, WORDS)
    turn = ledger.turn("turn-0")
    assert (turn.state, turn.signal, turn.next_state, turn.next_state_at) == ("pending", "feedback", WORDS, 110.0)
    [kept] = ledger.feedback("turn-0")
    assert (kept.applied, kept.thumbs, kept.score, kept.text, kept.source) == (True, "down", 0.5, "Too long.", "chat")


def test_feedback_beside_a_next_state_is_kept_and_changes_nothing(ledger: Ledger) -> None:
    ledger.record_next_state("turn-0", USER_NEXT, 105.0)
    assert not ledger.record_feedback(Feedback(turn_id="turn-0", created_at=110.0, thumbs="up"), WORDS)
    assert ledger.turn("turn-0").next_state == USER_NEXT
    assert ledger.turn("turn-0").signal == "next_state"
    assert [item.applied for item in ledger.feedback("turn-0")] == [False]


def test_feedback_to_nothing_is_refused(ledger: Ledger) -> None:
    with pytest.raises(UnknownRecordError, match="no turn 'none'"):
        ledger.record_feedback(Feedback(turn_id="none", created_at=110.0), WORDS)
    assert ledger.feedback("none") == []
