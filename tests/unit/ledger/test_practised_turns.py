"""A practised prompt is a turn's, its reply is not: what is said about a turn's own reply leaves practice out."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.testkit.ledger_records import USER_NEXT, judged_sample, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.ledger.conversations import turn_values
from openclaw.ledger.feedback import as_next_state
from openclaw.ledger.judging import KEPT_AT_REOPENING
from openclaw.ledger.records import Feedback, Verdict
from openclaw.ledger.samples import insert_sample
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import Outcome, OwnerSamples
from openclaw.runs.turn_story import outcome
from openclaw.training.samples import make_sample
from tests.helpers.probes import judged


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite", clock=lambda: 150.0)


def practise(ledger: Ledger, turn_id: str, rollout_id: int) -> None:
    """Practise a turn's prompt twice, and serve the weights after it since 200 s."""
    sample = make_sample(ledger.turns.get(turn_id), 0.0)
    with ledger.transaction() as connection:
        for _ in range(2):
            insert_sample(ledger.database, connection, turn_id, sample, origin="practice")
    ledger.samples.claim(rollout_id, 2, origin="practice")
    ledger.samples.record_step(rollout_id, "5", 199.0, 200.0)


def unused(ledger: Ledger, turn_id: str, conversation: bytes = b"") -> None:
    """Record a judged turn whose reply gives no sample."""
    ledger.turns.record(make_turn(turn_id, conversation=conversation))
    ledger.turns.record_next_state(turn_id, USER_NEXT, 102.0)
    record_judged(ledger, turn_id, Verdict(score=1), [], "under_lesson")


def test_the_outcome_is_that_of_the_reply(ledger: Ledger) -> None:
    judged_sample(ledger, "own")
    unused(ledger, "none")
    practise(ledger, "own", 0)
    practise(ledger, "none", 1)
    found = ledger.views.outcome("own")
    assert (found.sample, found.step, found.weight_version) == ("ready", None, None)
    expected = Outcome("judged", "under_lesson", 1, "judge", None, 0, None, None, None)
    assert ledger.views.outcome("none") == expected
    assert outcome(ledger.views.turn_record("own")).endswith("(1 sample)")
    assert outcome(ledger.views.turn_record("none")).startswith("Not trained (under_lesson)")
    assert [turn_values(record)["trainable"] for record in ledger.views.turn_records()] == [True, False]
    assert [each.of_practice for each in ledger.views.sample_facts()] == [False, True, True, True, True]


def test_practice_makes_the_same_reply_no_duplicate(ledger: Ledger) -> None:
    unused(ledger, "first", b"same")
    practise(ledger, "first", 0)
    assert not ledger.turns.gave_sample_before(make_turn("again", conversation=b"same"))
    judged_sample(ledger, "third")
    with ledger.transaction() as connection:
        connection.execute("UPDATE turns SET conversation = ? WHERE id = 'third'", (b"same",))
    assert ledger.turns.gave_sample_before(make_turn("again", conversation=b"same"))


def test_a_turn_whose_prompt_alone_was_practised_is_not_compared(ledger: Ledger) -> None:
    judged(ledger, "turn", 1)
    practise(ledger, "turn", 0)
    assert ledger.probes.candidates(0, 10**9, 9, 64) == []
    ledger.samples.claim(1, 1)
    assert [each.turn_id for each in ledger.probes.candidates(0, 10**9, 9, 64)] == ["turn"]


def test_practice_is_no_way_of_feedback_into_the_weights(ledger: Ledger) -> None:
    judged_sample(ledger, "turn")
    practise(ledger, "turn", 0)
    assert ledger.samples.feedback_to_live_seconds() == []
    ledger.samples.claim(1, 1)
    ledger.samples.record_step(1, "6", 300.0, 302.0)
    assert ledger.samples.feedback_to_live_seconds() == [200.0]


def test_practice_is_scored_by_nobody(ledger: Ledger) -> None:
    ledger.turns.record(make_turn("turn"))
    said = Feedback(turn_id="turn", created_at=110.0, thumbs="up")
    ledger.feedback.record(said, as_next_state(said))
    sample = make_sample(ledger.turns.get("turn"), 1.0)
    record_judged(ledger, "turn", Verdict(score=1, score_source="feedback"), [sample], None)
    practise(ledger, "turn", 0)
    assert ledger.views.owner_samples() == [OwnerSamples("", ready=1, used=2, stated=1)]


def test_practice_that_waits_holds_no_reading_of_logs_back(ledger: Ledger) -> None:
    judged_sample(ledger, "turn")
    with ledger.transaction() as connection:
        sample = make_sample(ledger.turns.get("turn"), 0.0)
        insert_sample(ledger.database, connection, "turn", sample, origin="practice")
    assert ledger.logs.ahead_of_training() == 1


def test_a_reopened_session_gives_what_practice_has_not_given(ledger: Ledger) -> None:
    unused(ledger, "turn")
    practise(ledger, "turn", 0)
    ledger.sessions.end("session", 160.0)
    with ledger.transaction() as connection:
        connection.execute("UPDATE sessions SET reopened_at = 170.0")
    assert ledger.database.rows(KEPT_AT_REOPENING, ("session",)) == []
    samples = [("turn", make_sample(ledger.turns.get("turn"), 1.0))]
    assert ledger.judging.close_session("session", samples, 180.0)
    assert ledger.samples.ready_count() == 1
