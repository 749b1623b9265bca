"""Feedback is kept in any case and becomes the next state of a turn that has none."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openclaw_rl_method import BinaryRL

from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.inspect import main as inspect
from openclaw.ledger.exceptions import FeedbackArrivedError, TransitionError, UnknownRecordError
from openclaw.ledger.feedback import FeedbackReceipt, Opinion, as_next_state, is_weak, opinion
from openclaw.ledger.records import BASELINE, WEIGHT, Feedback, Verdict
from openclaw.ledger.store import Ledger
from openclaw.ledger.turns import ONLY_WEAK, SUPERSEDED
from openclaw.messages.signals import ACTIONS
from openclaw.offline.replay import replay
from openclaw.privacy.redactor import Redactor
from openclaw.training.samples import make_sample

THUMB = Feedback(turn_id="turn-0", created_at=110.0, thumbs="up")
WORDS = [{"role": "user", "content": "Too long."}]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.turns.record(make_turn())
    return ledger


@pytest.mark.parametrize("ended", [False, True])
def test_feedback_is_the_next_state_of_a_turn_without_one(ledger: Ledger, ended: bool) -> None:
    if ended:
        ledger.sessions.end("session", 105.0)
    both = Feedback(turn_id="turn-0", created_at=110.0, thumbs="down", score=0.5, text="Too long.", source="chat")
    assert ledger.feedback.record(both, WORDS) == FeedbackReceipt(True, False, "pending", None)
    turn = ledger.turns.get("turn-0")
    assert (turn.state, turn.signal, turn.next_state, turn.next_state_at) == ("pending", "feedback", WORDS, 110.0)
    [kept] = ledger.feedback.of("turn-0")
    assert (kept.applied, kept.thumbs, kept.score, kept.text, kept.source) == (True, "down", 0.5, "Too long.", "chat")


def test_feedback_to_a_pending_turn_counts_beside_its_next_state(ledger: Ledger) -> None:
    ledger.turns.record_next_state("turn-0", USER_NEXT, 105.0)
    assert ledger.feedback.record(THUMB, WORDS).applied
    assert (ledger.turns.get("turn-0").next_state, ledger.turns.get("turn-0").signal) == (USER_NEXT, "next_state")
    [pending] = ledger.judging.pending(5)
    assert [item.thumbs for item in pending.feedback] == ["up"]


def test_no_verdict_is_committed_that_has_not_seen_the_feedback(ledger: Ledger) -> None:
    ledger.turns.record_next_state("turn-0", USER_NEXT, 105.0)
    ledger.feedback.record(THUMB, WORDS)
    with pytest.raises(FeedbackArrivedError, match="turn-0"):
        record_judged(ledger, "turn-0", Verdict(score=0), [], "score_zero", feedback_seen=0)
    assert ledger.turns.get("turn-0").state == "pending"
    record_judged(ledger, "turn-0", Verdict(score=0), [], "score_zero", feedback_seen=1)


@pytest.fixture
def judged(ledger: Ledger) -> Ledger:
    """A ledger whose turn was judged +1 and waits as a ready sample."""
    ledger.turns.record_next_state("turn-0", USER_NEXT, 105.0)
    turn = ledger.turns.get("turn-0")
    record_judged(ledger, "turn-0", Verdict(score=1), [make_sample(turn, 1.0, score=1)], None)
    return ledger


def test_feedback_after_judging_replaces_samples_that_wait(judged: Ledger) -> None:
    """Finding A8: a thumbs-down was ignored though the sample had not been trained."""
    receipt = judged.feedback.record(replace(THUMB, thumbs="down"), WORDS)
    assert receipt == FeedbackReceipt(True, False, "pending", None)
    assert judged.views.counts()["sample_reasons"] == {SUPERSEDED: 1}
    assert judged.samples.claim(0, 5) == []
    [pending] = judged.judging.pending(5)
    assert [item.thumbs for item in pending.feedback] == ["down"]
    record_judged(
        judged, "turn-0", Verdict(score=-1), [make_sample(pending.turn, -1.0, score=-1)], None, feedback_seen=1
    )
    [sample] = judged.samples.claim(0, 5)
    assert sample.reward == -1.0
    assert (judged.views.outcome("turn-0").sample, judged.views.outcome("turn-0").score) == ("leased", -1)


def test_feedback_on_a_turn_without_a_sample_has_it_judged_again(ledger: Ledger) -> None:
    ledger.turns.record_next_state("turn-0", USER_NEXT, 105.0)
    record_judged(ledger, "turn-0", Verdict(score=0), [], "score_zero")
    assert ledger.feedback.record(THUMB, WORDS).applied
    assert (ledger.turns.get("turn-0").state, ledger.turns.get("turn-0").reason) == ("pending", None)
    assert ledger.turns.get("turn-0").next_state == USER_NEXT


def say(ledger: Ledger, said: str, turn_id: str = "turn-0") -> bool:
    """Give feedback; return whether it counts."""
    given = {"thumbs": said} if said in ("up", "down") else {"score": 0.0} if said == "neutral" else {"text": said}
    feedback = replace(THUMB, turn_id=turn_id, **{"thumbs": None, **given})  # type: ignore[arg-type]
    receipt = ledger.feedback.record(feedback, as_next_state(feedback))
    assert receipt.state == "judged"
    assert ledger.turns.get(turn_id).state == "judged"
    return receipt.applied


@pytest.mark.parametrize("trained", [False, True], ids=["leased", "trained"])
@pytest.mark.parametrize(
    ("said", "applied", "reward"),
    [("down", True, -2.0), ("neutral", True, -1.0), ("up", True, None), ("Too long.", False, None)],
)
def test_feedback_after_a_step_turns_its_reward_around(
    judged: Ledger, said: str, applied: bool, reward: float | None, trained: bool
) -> None:
    """A thumbs-down that came an hour later did not correct a wrong +1."""
    [first] = judged.samples.claim(0, 1)
    if trained:
        judged.samples.mark_trained(0)
    assert say(judged, said) is applied
    assert [item.applied for item in judged.feedback.of("turn-0")] == [applied]
    corrections = judged.samples.claim(1, 5)
    assert [each.reward for each in corrections] == ([] if reward is None else [reward])
    for each in corrections:
        assert (each.tokens, each.rollout_log_probs, each.weight_versions) == (
            first.tokens,
            first.rollout_log_probs,
            first.weight_versions,
        )
        assert each.teacher_log_probs is None
        assert BASELINE not in each.metadata
    score = {"down": -1, "neutral": 0}.get(said, 1)
    assert judged.views.outcome("turn-0").score == score


def test_a_person_may_change_its_mind_once_in_each_direction(judged: Ledger) -> None:
    judged.samples.claim(0, 1)
    learned = 1.0
    for step, said in enumerate(("down", "up", "down", "up"), start=1):
        assert say(judged, said) is (step != 3), "the last thumb up says what the verdict says already"
        found = judged.samples.claim(step, 5)
        assert [each.reward for each in found] == ([] if step > 2 else [-2.0 if said == "down" else 2.0])
        learned += sum(each.reward for each in found)
    assert learned == 1.0


def test_a_correction_that_waits_is_replaced(judged: Ledger) -> None:
    judged.samples.claim(0, 1)
    assert [say(judged, said) for said in ("down", "up", "down", "neutral")] == [True] * 4
    assert [each.reward for each in judged.samples.claim(1, 5)] == [-1.0]
    assert judged.views.counts()["sample_reasons"] == {SUPERSEDED: 2}


def test_only_what_is_still_learned_is_turned_around(judged: Ledger) -> None:
    """The gate refuses the step after the person has spoken; a release makes both count."""
    judged.samples.claim(0, 1)
    say(judged, "down")
    judged.decisions.quarantine(0)
    assert [each.reward for each in judged.samples.claim(1, 1)] == [-1.0]
    assert [each.reward for each in judged.samples.claim(1, 1)] == [-1.0], "claimed again"
    judged.samples.reconcile(-1)
    both = judged.samples.claim(0, 2)
    assert [each.reward for each in both] == [1.0, -2.0]
    judged.samples.reconcile(0)
    assert judged.samples.claim(1, 2) == [], "no sample is trained twice"


def test_a_restored_checkpoint_without_the_step_has_the_turn_judged_again(judged: Ledger) -> None:
    judged.samples.claim(0, 1)
    say(judged, "down")
    judged.samples.reconcile(-1)
    assert judged.feedback.record(replace(THUMB, thumbs="up"), WORDS) == FeedbackReceipt(True, False, "pending", None)
    assert judged.views.counts()["samples"] == {"dropped": 2}


def test_the_choices_of_a_request_share_a_correction(ledger: Ledger) -> None:
    for turn_id in ("many.3", "many"):
        ledger.turns.record(make_turn(turn_id))
        ledger.turns.record_next_state(turn_id, USER_NEXT, 105.0)
        record_judged(ledger, turn_id, Verdict(score=1), [make_sample(ledger.turns.get(turn_id), 0.5, score=1)], None)
    ledger.samples.claim(0, 2)
    assert say(ledger, "up", "many")
    assert say(ledger, "down", "many")
    [sample] = ledger.samples.claim(1, 2)
    assert sample.reward == pytest.approx(-0.5 / 4 - 0.5), "the method's weight of 0.5 holds for the opinion, too"
    assert sample.metadata[WEIGHT] == 0.25


def test_later_baselines_count_the_correction(judged: Ledger) -> None:
    judged.samples.claim(0, 1)
    assert judged.database.rows("SELECT baseline_reward FROM samples")[0][0] == 1.0
    say(judged, "down")
    assert [
        tuple(row) for row in judged.database.rows("SELECT baseline_role, baseline_reward FROM samples ORDER BY id")
    ] == [
        ("user", -1.0),
        (None, 1.0),
    ]


def test_a_sample_without_a_reward_has_nothing_to_turn_around(ledger: Ledger) -> None:
    ledger.turns.record_next_state("turn-0", USER_NEXT, 105.0)
    sample = make_sample(ledger.turns.get("turn-0"), 0.0, score=None, teacher_log_probs=[-1.0] * 3)
    record_judged(ledger, "turn-0", Verdict(hint="No bold."), [sample], None)
    ledger.samples.claim(0, 1)
    assert not say(ledger, "down")
    assert ledger.samples.claim(1, 1) == []


def test_inspect_and_replay_know_a_correction(judged: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    judged.samples.claim(0, 1)
    say(judged, "down")
    assert inspect([str(judged.path), "--samples"]) == 0
    assert "reward -2.00" in capsys.readouterr().out.splitlines()[1]
    found = replay(judged, BinaryRL(SimpleNamespace(prm_m=1)))  # type: ignore[arg-type]
    assert (found.different, found.skipped) == ([], {"corrected": 2})


def test_a_judged_turn_gets_no_second_next_state(judged: Ledger) -> None:
    with pytest.raises(TransitionError, match="judged -> pending"):
        judged.turns.record_next_state("turn-0", USER_NEXT, 300.0)


def did(action: str, at: float = 110.0, **more: Any) -> Feedback:
    return Feedback(turn_id="turn-0", created_at=at, action=action, **more)


STATEMENT = st.builds(
    Feedback,
    turn_id=st.just("turn-0"),
    created_at=st.just(110.0),
    thumbs=st.sampled_from([None, "up", "down"]),
    score=st.sampled_from([None, -1.0, 0.0, 0.2]),
    text=st.sampled_from([None, "", " ", "\N{THUMBS UP SIGN}", "Too long."]),
    action=st.sampled_from([None, *ACTIONS]),
    edit=st.sampled_from([None, "Short."]),
)


@pytest.fixture(scope="module")
def stated(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    ledger = Ledger(tmp_path_factory.mktemp("stated") / "ledger.sqlite")
    ledger.turns.record(make_turn())
    return ledger


@settings(deadline=None)
@given(
    st.lists(STATEMENT, max_size=3),
    st.sampled_from(["pending", "judged", "ended"]),
    st.sampled_from(["feedback", None]),
)
def test_weak_actions_are_the_same_to_the_ledger_and_to_the_program(
    stated: Ledger, statements: list[Feedback], state: str, signal: str | None
) -> None:
    database = stated.database
    with database.transaction() as connection:
        connection.execute("DELETE FROM feedback")
        connection.execute("DROP TRIGGER IF EXISTS turns_next_state")
        connection.execute("UPDATE turns SET state = ?, signal = ?", (state, signal))
        for statement in statements:
            database.insert(connection, "feedback", {**asdict(statement), "applied": 0})
    only_weak = bool(database.rows(f"SELECT {ONLY_WEAK} AS weak FROM turns")[0]["weak"])
    began = signal == "feedback" and state in ("pending", "judged")
    assert only_weak == (began and all(map(is_weak, statements)))


def test_a_copied_reply_counts_when_its_session_ends_without_a_reaction(ledger: Ledger) -> None:
    given = did("copied")
    assert ledger.feedback.record(given, as_next_state(given)) == FeedbackReceipt(False, False, "waiting", None)
    assert ledger.feedback.record(given, as_next_state(given)).repeated
    ledger.sessions.end("session", 120.0)
    turn = ledger.turns.get("turn-0")
    assert (turn.state, turn.signal) == ("pending", "feedback")
    assert turn.next_state == [{"role": "user", "content": "(feedback: copied)"}]
    assert opinion(ledger.feedback.of("turn-0"), turn) == Opinion(1, weight=0.5)


def test_a_reaction_in_words_outranks_a_copied_reply(ledger: Ledger) -> None:
    ledger.feedback.record(did("copied"), WORDS)
    ledger.turns.record_next_state("turn-0", USER_NEXT, 115.0)
    ledger.sessions.end("session", 120.0)
    turn = ledger.turns.get("turn-0")
    assert (turn.state, turn.next_state) == ("pending", USER_NEXT)
    assert opinion(ledger.feedback.of("turn-0"), turn).score is None


@pytest.mark.parametrize("is_judged", [False, True])
def test_words_that_come_after_the_session_ended_take_the_place_of_a_copied_reply(
    tmp_path: Path, is_judged: bool
) -> None:
    ledger = Ledger(tmp_path / "known.sqlite")
    ledger.turns.record(make_turn(conversation=b"known"))
    ledger.feedback.record(did("copied"), WORDS)
    ledger.sessions.end("session", 120.0)
    if is_judged:
        turn = ledger.turns.get("turn-0")
        sample = make_sample(turn, 0.5, score=1)
        record_judged(ledger, "turn-0", Verdict(score=1, score_source="feedback"), [sample], None, feedback_seen=1)
    [node] = ledger.sessions.nodes("session", 5)[1]
    assert node.state == "ended", "the conversation may still give it a next state"
    ledger.turns.record_next_state("turn-0", USER_NEXT, 130.0)
    turn = ledger.turns.get("turn-0")
    assert (turn.state, turn.signal, turn.next_state) == ("pending", "next_state", USER_NEXT)
    assert opinion(ledger.feedback.of("turn-0"), turn).score is None
    assert ledger.samples.ready_count() == 0
    with pytest.raises(TransitionError):
        ledger.turns.record_next_state("turn-0", USER_NEXT, 140.0)


def test_a_thumb_beside_a_copied_reply_keeps_the_next_state(ledger: Ledger) -> None:
    for said in (did("copied"), THUMB):
        ledger.feedback.record(said, as_next_state(said))
    with pytest.raises(TransitionError):
        ledger.turns.record_next_state("turn-0", USER_NEXT, 130.0)


def test_a_regenerated_reply_is_not_praised_for_having_been_copied(ledger: Ledger) -> None:
    ledger.feedback.record(did("copied"), WORDS)
    ledger.turns.mark_regenerated("turn-0")
    ledger.sessions.end("session", 120.0)
    assert (ledger.turns.get("turn-0").state, ledger.turns.get("turn-0").signal) == ("ended", "regenerated")
    assert not ledger.feedback.record(did("copied", 130.0), WORDS).applied


def test_what_was_done_with_a_judged_reply_changes_nothing(judged: Ledger) -> None:
    assert judged.feedback.record(did("regenerated"), WORDS) == FeedbackReceipt(False, False, "judged", None)
    assert judged.samples.ready_count() == 1


def test_an_edit_after_a_step_turns_its_reward_around(judged: Ledger) -> None:
    judged.samples.claim(0, 1)
    assert judged.feedback.record(did("edited", edit="Four."), WORDS).applied
    [correction] = judged.samples.claim(1, 1)
    assert correction.reward == -2.0


@pytest.mark.parametrize("thumbs", ["up", "down"])
def test_a_thumb_outranks_every_action(thumbs: str) -> None:
    given = [THUMB, did("edited", edit="Four."), did("copied", 120.0)]
    assert opinion([replace(given[0], thumbs=thumbs), *given[1:]]).score == (1 if thumbs == "up" else -1)


def test_an_edited_reply_is_redacted(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "redacted.sqlite", redaction=Redactor("secrets"))
    ledger.turns.record(make_turn())
    ledger.feedback.record(did("edited", edit="git clone https://bob:S3cr3t-9@host.io/a"), WORDS)
    assert "S3cr3t-9" not in str(ledger.feedback.of("turn-0")[0].edit)


def test_feedback_to_a_turn_that_is_never_trained_is_kept(ledger: Ledger) -> None:
    ledger.turns.record(make_turn("turn-1", kind="side"))
    receipt = ledger.feedback.record(replace(THUMB, turn_id="turn-1"), WORDS)
    assert receipt == FeedbackReceipt(False, False, "excluded", "side")
    assert len(ledger.feedback.of("turn-1")) == 1


def test_saying_the_same_again_changes_nothing(ledger: Ledger) -> None:
    ledger.feedback.record(THUMB, WORDS)
    later = replace(THUMB, created_at=200.0, source="phone")
    assert ledger.feedback.record(later, WORDS) == FeedbackReceipt(True, True, "pending", None)
    ledger.feedback.record(replace(later, thumbs="down"), WORDS)
    ledger.feedback.record(later, WORDS)
    assert [item.thumbs for item in ledger.feedback.of("turn-0")] == ["up", "down", "up"]


def test_feedback_to_nothing_is_refused(ledger: Ledger) -> None:
    with pytest.raises(UnknownRecordError, match="no turn 'none'"):
        ledger.feedback.record(Feedback(turn_id="none", created_at=110.0), WORDS)
    assert ledger.feedback.of("none") == []
