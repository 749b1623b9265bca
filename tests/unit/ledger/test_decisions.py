"""Decisions in the ledger: quarantine, release, rollback, and which probes may decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.testkit.ledger_records import USER_NEXT
from openclaw.credit.baseline import record_judged
from openclaw.ledger.decisions import EARLY, LATE, QUARANTINE, QUIET, ROLLBACK, UNUSED, Window
from openclaw.ledger.records import Feedback, Verdict
from openclaw.ledger.store import Ledger
from openclaw.ledger.turns import SUPERSEDED
from openclaw.training.samples import make_sample
from tests.helpers.probes import judged, leased_batch, probes, states


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def refuse(ledger: Ledger, rollout_id: int, *, by_margin: bool = True, size: int = 4) -> list[int]:
    """Lease, refuse and quarantine a batch; return its samples."""
    batch = leased_batch(ledger, rollout_id, size)
    first = ledger.decisions.middle_turn(rollout_id)
    ledger.decisions.record(rollout_id, "refused", "7", "worse", by_margin=by_margin, first_turn=first)
    ledger.decisions.quarantine(rollout_id)
    return batch


def accept_step(ledger: Ledger, rollout_id: int, version: str) -> list[int]:
    """Lease, train and serve a batch; return its samples."""
    batch = leased_batch(ledger, rollout_id)
    ledger.decisions.record(rollout_id, "step", version, "better", first_turn=ledger.decisions.middle_turn(rollout_id))
    ledger.samples.record_step(rollout_id, version, 1.0, 2.0)
    return batch


def test_a_refused_batch_is_quarantined_and_released_once(ledger: Ledger) -> None:
    batches = [refuse(ledger, rollout_id) for rollout_id in range(3)]
    samples = [sample for batch in batches for sample in batch]
    assert {states(ledger)[sample][:2] for sample in samples} == {("dropped", QUARANTINE)}
    assert ledger.samples.ready_count() == 0
    assert str(ledger.decisions.offer(3)).startswith("the gate refused 3 batches lately")
    accepted = ledger.decisions.accept_refused(3)
    assert accepted is not None
    assert accepted.samples == 12
    assert {states(ledger)[sample] for sample in samples} == {("ready", None, None)}
    assert ledger.decisions.offer(1) is None
    assert ledger.decisions.accept_refused(1) is None
    assert [sample.metadata["ledger_id"] for sample in ledger.samples.claim(3, 12)] == samples


def refuse_for(ledger: Ledger, rollout_id: int, *flags: str) -> list[int]:
    """Lease a batch and refuse it for flags without effect alone; return its samples."""
    batch = leased_batch(ledger, rollout_id)
    metrics = {f"{UNUSED}{flag}": 1.0 for flag in flags}
    ledger.decisions.record(rollout_id, "refused", "7", "no effect", metrics=metrics)
    return batch


def test_accepted_flags_release_what_they_alone_refused(ledger: Ledger) -> None:
    opinions = refuse(ledger, 0)
    window = ledger.decisions.probe_window(None)
    first = refuse_for(ledger, 1, "--gamma")
    ledger.decisions.quarantine(1)
    second = refuse_for(ledger, 2, "--gamma", "--lr")
    assert ledger.decisions.accepted_flags() == set()
    accepted = ledger.decisions.accept_flags()
    assert accepted is not None
    assert accepted.samples == len(first)
    assert "--gamma, --lr; 4 samples" in accepted.why
    assert ledger.decisions.quarantine(2) == 0, "it was accepted before its steps were undone"
    assert {states(ledger)[sample] for sample in (*first, *second)} == {("ready", None, None)}
    assert ledger.decisions.accepted_flags() == {"--gamma", "--lr"}
    assert ledger.decisions.accept_flags() is None
    assert {states(ledger)[sample][:2] for sample in opinions} == {("dropped", QUARANTINE)}
    assert (ledger.decisions.offer(1) is not None, ledger.decisions.probe_window(None)) == (True, window), (
        "a series of opinions goes on"
    )


def test_accepted_flags_release_no_change_of_opinions_and_neither_the_other_way(ledger: Ledger) -> None:
    batch = leased_batch(ledger, 0)
    ledger.decisions.record(0, "refused", "7", "worse", by_margin=True)
    refuse_for(ledger, 1, "--gamma")
    assert ledger.decisions.accept_flags() is not None
    assert ledger.decisions.quarantine(0) == len(batch)
    flagged = refuse_for(ledger, 2, "--lr")
    assert ledger.decisions.accept_refused(1) is not None
    assert ledger.decisions.quarantine(2) == len(flagged)


def test_a_series_of_refusals_goes_on_over_accepted_batches(ledger: Ledger) -> None:
    probes(ledger, 2)
    refuse(ledger, 0)
    middle = ledger.decisions.refusals()[0].first_turn
    accept_step(ledger, 1, "1")
    refuse(ledger, 2)
    refuse(ledger, 3, by_margin=False)
    assert ledger.decisions.offer(3) is None
    assert ledger.decisions.accept_refused(3) is None
    assert ledger.decisions.probe_window(10**6).end == middle, "nobody is checked by opinions since the first refusal"
    accepted = ledger.decisions.accept_refused(2)
    assert accepted is not None
    by_batch = {batch: state for state, _, batch in states(ledger).values()}
    assert by_batch == {1: "leased", 3: "dropped", None: "ready"}
    assert ledger.decisions.refusals() == []


def test_a_series_of_refusals_ends_with_enough_accepted_batches(ledger: Ledger) -> None:
    refuse(ledger, 0)
    for number in range(1, QUIET):
        accept_step(ledger, number, str(number))
    assert len(ledger.decisions.refusals()) == 1
    accept_step(ledger, QUIET, str(QUIET))
    assert ledger.decisions.refusals() == []


def test_the_newer_half_of_the_turns_does_not_decide(ledger: Ledger) -> None:
    assert ledger.decisions.probe_window(100) == Window(0, 100)
    assert ledger.decisions.probe_window(200) == Window(0, EARLY)
    assert ledger.decisions.probe_window(1000) == Window(0, 500)
    assert ledger.decisions.probe_window(10**5) == Window(0, 10**5 - LATE)


def test_an_older_checkpoint_brings_a_quarantined_batch_back(ledger: Ledger) -> None:
    accept_step(ledger, 0, "1")
    batch = refuse(ledger, 1)
    ledger.samples.mark_trained(0)
    ledger.samples.reconcile(1)
    assert {states(ledger)[sample][1] for sample in batch} == {QUARANTINE}
    assert len(ledger.decisions.refusals()) == 1
    ledger.samples.reconcile(0)
    assert {states(ledger)[sample] for sample in batch} == {("ready", None, None)}
    assert ledger.decisions.refusals() == []
    assert [each.kind for each in ledger.decisions.all()] == ["step"]


def test_an_acceptance_outlives_an_older_checkpoint(ledger: Ledger) -> None:
    probes(ledger, 2)
    for rollout_id in range(3):
        refuse(ledger, rollout_id)
    ledger.decisions.accept_refused(3)
    window = ledger.decisions.probe_window(None)
    ledger.samples.reconcile(-1)
    assert [each.kind for each in ledger.decisions.all()] == ["accept"]
    assert ledger.decisions.probe_window(None) == window
    assert ledger.samples.ready_count() == 12


def test_released_samples_are_not_taken_back_by_their_old_batch(ledger: Ledger) -> None:
    batch = refuse(ledger, 0)
    ledger.decisions.accept_refused(1)
    ledger.samples.record_step(0, "7", 1.0, 2.0)
    assert {states(ledger)[sample] for sample in batch} == {("ready", None, None)}


def test_an_acceptance_before_the_steps_are_undone_releases_this_batch_too(ledger: Ledger) -> None:
    refuse(ledger, 0)
    batch = leased_batch(ledger, 1)
    ledger.decisions.record(1, "refused", "7", "worse", by_margin=True, first_turn=ledger.decisions.middle_turn(1))
    accepted = ledger.decisions.accept_refused(2)
    assert accepted is not None
    assert ledger.decisions.quarantine(1) == 0
    assert {states(ledger)[sample] for sample in batch} == {("ready", None, None)}
    again = refuse(ledger, 2, size=8)
    assert {states(ledger)[sample][:2] for sample in again} == {("dropped", QUARANTINE)}


@pytest.mark.parametrize("back", ["released", "restored"])
def test_a_refused_turn_that_is_judged_again_has_one_sample(ledger: Ledger, back: str) -> None:
    """Feedback on a turn of a refused batch gives it a new verdict; the quarantined sample stays dropped."""
    batch = refuse(ledger, 0)
    feedback = Feedback(turn_id="turn-0-1", created_at=103.0, thumbs="down")
    assert ledger.feedback.record(feedback, USER_NEXT).applied
    turn = ledger.turns.get("turn-0-1")
    record_judged(
        ledger, turn.id, Verdict(score=-1, score_source="feedback"), [make_sample(turn, -1.0, score=-1)], None
    )
    if back == "released":
        ledger.decisions.accept_refused(1)
    else:
        ledger.samples.reconcile(-1)
    found = states(ledger)
    assert found[batch[1]] == ("dropped", SUPERSEDED, None)
    assert found[max(found)] == ("ready", None, None)
    assert {found[sample][0] for sample in batch if sample != batch[1]} == {"ready"}


def test_a_batch_that_is_decided_again_has_one_decision(ledger: Ledger) -> None:
    refuse(ledger, 0)
    ledger.decisions.record(0, "refused", "7", "worse again", by_margin=True)
    ledger.decisions.quarantine(0)
    assert [each.why for each in ledger.decisions.refusals()] == ["worse again"]


def test_a_rollback_unlearns_later_steps(ledger: Ledger) -> None:
    kept, *gone = [accept_step(ledger, number, str(number + 1)) for number in range(3)]
    ledger.samples.mark_trained(1)
    under_way = leased_batch(ledger, 3)
    assert ledger.decisions.record_rollback(0, 2, "4", 9.0) == 8
    found = states(ledger)
    assert {found[sample][0] for sample in kept} == {"trained"}
    assert {found[sample][:2] for batch in gone for sample in batch} == {("dropped", ROLLBACK)}
    assert {found[sample][0] for sample in under_way} == {"leased"}
    assert ledger.samples.live_weight_version() == "4"
    assert [(step["rollout_id"], step["samples"]) for step in ledger.views.step_records()] == [(0, 4), (2, 0)]
    serving = ledger.decisions.serving()
    assert serving is not None
    assert (serving.kind, serving.weight_version) == ("rollback", "4")
    assert serving.why == "back to version 1; 8 samples are unlearned"


def test_a_rollback_that_is_told_again_changes_nothing_more(ledger: Ledger) -> None:
    for number in range(2):
        accept_step(ledger, number, str(number + 1))
    ledger.decisions.record_rollback(0, 1, "3", 9.0)
    before = states(ledger)
    for version in ("3", "4"):  # the process died before the checkpoint, and behind it
        ledger.decisions.record_rollback(0, 1, version, 9.5)
        assert states(ledger) == before
        assert ledger.samples.live_weight_version() == version
        assert [step["rollout_id"] for step in ledger.views.step_records()] == [0, 1]
        (told,) = ledger.decisions.all("AND kind = 'rollback'")
        assert (told.weight_version, told.why) == (version, "back to version 1; 4 samples are unlearned")


def test_two_rollbacks_in_a_row_are_two(ledger: Ledger) -> None:
    for number in range(3):
        accept_step(ledger, number, str(number + 1))
    ledger.decisions.record_rollback(1, 2, "4", 9.0)
    ledger.decisions.record_rollback(0, 2, "5", 9.5)
    told = [(each.weight_version, each.why) for each in ledger.decisions.all("AND kind = 'rollback'")]
    assert told == [
        ("4", "back to version 2; 4 samples are unlearned"), ("5", "back to version 1; 4 samples are unlearned"),
    ]  # fmt: skip


def trained_batches(ledger: Ledger) -> set[int]:
    return {
        batch for state, _, batch in states(ledger).values() if state in ("leased", "trained") and batch is not None
    }


def test_who_goes_forward_again_has_the_samples_of_the_newer_version(ledger: Ledger) -> None:
    """Versions 1, 2, 3, back to 1 (4), another step (5); then forward to 2, and to 5, which was trained on 1."""
    for number in range(3):
        accept_step(ledger, number, str(number + 1))
    ledger.samples.mark_trained(2)
    ledger.decisions.record_rollback(0, 2, "4", 9.0)
    accept_step(ledger, 3, "5")
    ledger.samples.mark_trained(3)
    assert trained_batches(ledger) == {0, 3}
    ledger.decisions.record_rollback(1, 3, "6", 10.0)
    assert trained_batches(ledger) == {0, 1}
    assert [(step["rollout_id"], step["weight_version"]) for step in ledger.views.step_records()] == [
        (0, "1"), (1, "2"), (3, "6"),
    ]  # fmt: skip
    assert [(each.kind, each.weight_version) for each in ledger.decisions.all()] == [
        ("step", "1"), ("step", "2"), ("rollback", "4"), ("rollback", "6"),
    ]  # fmt: skip
    accept_step(ledger, 4, "7")
    ledger.samples.mark_trained(4)
    ledger.decisions.record_rollback(
        2, 4, "8", 11.0
    )  # the checkpoint of batch 2 holds version 4 since the first rollback
    assert trained_batches(ledger) == {0}
    assert ledger.decisions.all()[-1].why.startswith("back to version 4; ")
    assert {state for state, _, batch in states(ledger).values() if batch == 0} == {"trained"}


def test_an_older_checkpoint_from_before_a_rollback_has_its_samples(ledger: Ledger) -> None:
    """The driver died before the rollback's checkpoint, and nobody asks for it again."""
    for number in range(3):
        accept_step(ledger, number, str(number + 1))
    ledger.samples.mark_trained(1)
    ledger.decisions.record_rollback(0, 2, "4", 9.0)
    ledger.samples.reconcile(1)
    assert trained_batches(ledger) == {0, 1}
    assert [step["weight_version"] for step in ledger.views.step_records()] == ["1", "2"]
    assert ledger.samples.ready_count() == 4


def test_a_rollback_to_the_serving_weights_unlearns_nothing(ledger: Ledger) -> None:
    batch = accept_step(ledger, 0, "1")
    assert ledger.decisions.record_rollback(0, 0, "2", 9.0) == 0
    assert {states(ledger)[sample][0] for sample in batch} == {"leased"}
    assert [(step["weight_version"], step["samples"]) for step in ledger.views.step_records()] == [("2", 4)]


def test_a_rollback_before_the_first_step(ledger: Ledger) -> None:
    accept_step(ledger, 0, "1")
    assert ledger.decisions.record_rollback(-1, 0, "2", 9.0) == 4
    serving = ledger.decisions.serving()
    assert serving is not None
    assert serving.why == "back to the initial weights; 4 samples are unlearned"


def test_the_judge_of_a_batch_does_not_decide_alone(ledger: Ledger) -> None:
    probes(ledger, 2)  # turns 1 to 4
    leased_batch(ledger, 0)  # 5 to 8
    middle = ledger.decisions.middle_turn(0)
    assert middle == 6
    assert ledger.decisions.probe_window(middle) == Window(0, 6)
    assert ledger.decisions.probe_window(None) == Window(0, EARLY)
    assert ledger.decisions.middle_turn(99) is None


def test_refusals_in_a_row_freeze_the_probes_and_an_acceptance_retires_the_old_ones(ledger: Ledger) -> None:
    probes(ledger, 2)
    refuse(ledger, 0)  # 5 to 8
    probes(ledger, 2, "new")  # 9 to 12
    refuse(ledger, 1)  # 13 to 16
    assert ledger.decisions.probe_window(14) == Window(0, 6)
    ledger.decisions.accept_refused(2)
    ledger.samples.claim(2, 8)  # both batches
    assert ledger.decisions.probe_window(ledger.decisions.middle_turn(2)) == Window(6, 17)
    judged(ledger, "newer", 1, probe=True)  # 17
    leased_batch(ledger, 3)  # 18 to 21
    assert ledger.decisions.probe_window(ledger.decisions.middle_turn(3)) == Window(6, 19)


def test_scores_of_the_last_versions_are_kept(ledger: Ledger) -> None:
    probes(ledger, 1)
    for number in range(5):
        ledger.decisions.record(number, "step", str(number + 1), "w", scores={"probe-liked-0": -float(number)})
    assert ledger.decisions.accepted_scores(2) == {4: {"probe-liked-0": -3.0}, 5: {"probe-liked-0": -4.0}}
    assert ledger.database.rows("SELECT COUNT(*) AS n FROM probe_scores")[0]["n"] == 2
    ledger.decisions.record_rollback(2, 4, "6", 9.0)
    assert list(ledger.decisions.accepted_scores(4)) == [6]
