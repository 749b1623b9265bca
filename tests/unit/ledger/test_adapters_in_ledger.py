"""With an adapter per person, steps, versions, decisions, rollbacks and probes are one person's, and nobody moves another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.testkit.ledger_records import judged_sample
from openclaw.ledger.decisions import EARLY, QUARANTINE, QUIET, ROLLBACK, DecisionRecord, Window
from openclaw.ledger.store import Ledger
from openclaw.owners import LOCAL, stored_id
from tests.helpers.probes import states

ALICE, BOB = "alice", "bob"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


def lease(ledger: Ledger, rollout_id: int, person: str, size: int = 2) -> list[int]:
    """Record judged turns of a person and lease them; return the ids of their samples."""
    for number in range(size):
        judged_sample(ledger, f"{person}-{rollout_id}-{number}", session_id=stored_id(person, f"s{rollout_id}"))
    return [sample.metadata["ledger_id"] for sample in ledger.samples.claim(rollout_id, size, person=person)]


def step(ledger: Ledger, rollout_id: int, person: str, version: str) -> list[int]:
    """Lease, accept and serve a person's batch; return its samples."""
    samples = lease(ledger, rollout_id, person)
    ledger.decisions.record(rollout_id, "step", version, "better", person=person)
    ledger.samples.record_step(rollout_id, version, 1.0 + rollout_id, 2.0 + rollout_id, person)
    return samples


def refuse(ledger: Ledger, rollout_id: int, person: str) -> list[int]:
    """Lease, refuse and quarantine a person's batch; return its samples."""
    samples = lease(ledger, rollout_id, person)
    first = ledger.decisions.middle_turn(rollout_id)
    ledger.decisions.record(rollout_id, "refused", "9", "worse", by_margin=True, first_turn=first, person=person)
    ledger.decisions.quarantine(rollout_id)
    return samples


def moves(ledger: Ledger, samples: list[int]) -> set[tuple[str, str | None]]:
    """Return state and reason of samples."""
    known = states(ledger)
    return {known[sample][:2] for sample in samples}


def why_serves(record: DecisionRecord | None) -> tuple[str, str | None] | None:
    return None if record is None else (record.weight_version, record.person)


def test_versions_count_per_person(ledger: Ledger) -> None:
    step(ledger, 0, ALICE, "1")
    step(ledger, 1, BOB, "1")
    step(ledger, 2, ALICE, "2")
    live = {person: ledger.samples.live_weight_version(person) for person in (ALICE, BOB, LOCAL, None)}
    assert live == {ALICE: "2", BOB: "1", LOCAL: None, None: None}
    assert ledger.samples.live_update(BOB) == ("1", 3.0)
    assert {each: why_serves(ledger.decisions.serving(each)) for each in (ALICE, BOB, None)} == {
        ALICE: ("2", ALICE),
        BOB: ("1", BOB),
        None: None,
    }
    assert [row["person"] for row in ledger.views.step_records()] == [ALICE, BOB, ALICE]
    assert [each.person for each in ledger.views.gate_decisions()] == [ALICE, BOB, ALICE]
    assert [ledger.samples.person_of(batch) for batch in (0, 1, 7)] == [ALICE, BOB, None]


def test_a_persons_rollback_unlearns_nothing_of_others(ledger: Ledger) -> None:
    first, other, second, third = (
        step(ledger, batch, person, version)
        for batch, (person, version) in enumerate([(ALICE, "1"), (BOB, "1"), (ALICE, "2"), (ALICE, "3")])
    )
    ledger.samples.mark_trained(3)
    dropped = ledger.decisions.record_rollback(
        ledger.decisions.batch_of_version(ALICE, "1") or 0, ledger.decisions.last_batch(ALICE), "4", 9.0, ALICE, "1"
    )
    assert dropped == len(second) + len(third)
    assert moves(ledger, first + other) == {("trained", None)}
    assert moves(ledger, second + third) == {("dropped", ROLLBACK)}
    assert ledger.samples.live_weight_version(ALICE) == "4"
    assert ledger.samples.live_weight_version(BOB) == "1"
    assert why_serves(ledger.decisions.serving(BOB)) == ("1", BOB)
    assert "back to version 1; 4 samples" in ledger.decisions.all("AND kind = 'rollback'")[0].why
    assert ledger.samples.reconcile(3) == {"trained": 0, "ready": 0}, "a restart finds everybody as they were"
    assert moves(ledger, second + third) == {("dropped", ROLLBACK)}
    assert moves(ledger, other) == {("trained", None)}


def test_a_person_goes_forward_again(ledger: Ledger) -> None:
    first = step(ledger, 0, ALICE, "1")
    step(ledger, 1, BOB, "1")
    second = step(ledger, 2, ALICE, "2")
    ledger.samples.mark_trained(2)
    ledger.decisions.record_rollback(0, 2, "3", 9.0, ALICE, "1")
    assert moves(ledger, second) == {("dropped", ROLLBACK)}
    ledger.decisions.record_rollback(2, 2, "4", 10.0, ALICE, "2")
    assert moves(ledger, first + second) == {("trained", None)}
    assert ledger.samples.live_weight_version(ALICE) == "4"
    ledger.decisions.record_rollback(-1, 2, "5", 11.0, ALICE, "0")
    assert moves(ledger, first + second) == {("dropped", ROLLBACK)}
    assert ledger.decisions.batch_of_version(ALICE, "0") == -1
    assert ledger.decisions.batch_of_version(ALICE, "17") is None


def test_a_restored_checkpoint_undoes_everybodys_later_steps(ledger: Ledger) -> None:
    step(ledger, 0, ALICE, "1")
    step(ledger, 1, BOB, "1")
    later = step(ledger, 2, BOB, "2")
    assert ledger.samples.reconcile(1) == {"trained": 4, "ready": 2}
    assert moves(ledger, later) == {("ready", None)}
    assert [ledger.samples.live_weight_version(person) for person in (ALICE, BOB)] == ["1", "1"]


def test_a_batch_number_that_was_another_persons_before_a_restart_is_not_taken_back(ledger: Ledger) -> None:
    """Batch 1 was alice's until the trainer died, and is bob's after it."""
    step(ledger, 0, ALICE, "1")
    step(ledger, 1, ALICE, "2")
    ledger.samples.reconcile(0)
    bobs = step(ledger, 1, BOB, "1")
    alices = [sample.metadata["ledger_id"] for sample in ledger.samples.claim(2, 2, person=ALICE)]
    ledger.samples.record_step(2, "2", 3.0, 4.0, ALICE)
    ledger.samples.mark_trained(2)
    assert ledger.decisions.record_rollback(0, 2, "3", 9.0, ALICE, "1") == len(alices)
    assert moves(ledger, alices) == {("dropped", ROLLBACK)}
    assert moves(ledger, bobs) == {("trained", None)}
    assert ledger.samples.live_weight_version(BOB) == "1"
    assert ledger.samples.reconcile(2) == {"trained": 0, "ready": 0}
    assert (moves(ledger, bobs), ledger.samples.live_weight_version(BOB)) == ({("trained", None)}, "1")


def test_a_version_is_of_the_batch_that_made_it_last(ledger: Ledger) -> None:
    """Version 1 was made by batch 3 until the trainer died, and again by batch 1 after it."""
    step(ledger, 3, ALICE, "1")
    ledger.samples.reconcile(-1)
    ledger.samples.record_step(1, "1", 5.0, 6.0, ALICE)
    ledger.samples.record_step(2, "2", 7.0, 8.0, ALICE)
    assert ledger.decisions.batch_of_version(ALICE, "1") == 1


def test_refusals_and_acceptance_are_a_persons_own(ledger: Ledger) -> None:
    alices = refuse(ledger, 0, ALICE)
    bobs = [sample for batch in (1, 2, 3) for sample in refuse(ledger, batch, BOB)]
    assert [len(ledger.decisions.refusals(person)) for person in (ALICE, BOB, None)] == [1, 3, 0]
    assert ledger.decisions.offer(3, ALICE) is None
    assert ledger.decisions.accept_refused(3, ALICE) is None
    assert str(ledger.decisions.offer(3, BOB)).startswith("the gate refused 3 batches lately")
    accepted = ledger.decisions.accept_refused(3, BOB)
    assert accepted is not None
    assert (accepted.person, accepted.samples) == (BOB, len(bobs))
    assert moves(ledger, bobs) == {("ready", None)}
    assert moves(ledger, alices) == {("dropped", QUARANTINE)}
    for batch in range(4, 4 + QUIET):
        step(ledger, batch, BOB, str(batch))
    assert len(ledger.decisions.refusals(ALICE)) == 1, "a series ends with batches of the same person"


def test_a_refusal_that_its_person_accepted_meanwhile_is_released(ledger: Ledger) -> None:
    for batch in range(2):
        refuse(ledger, batch, ALICE)
    samples = lease(ledger, 2, BOB)
    ledger.decisions.record(2, "refused", "9", "worse", by_margin=True, person=BOB)
    ledger.decisions.accept_refused(2, ALICE)
    assert ledger.decisions.quarantine(2) == len(samples), "another person's acceptance releases nothing"


def test_the_probe_window_counts_a_persons_own_turns(ledger: Ledger) -> None:
    for number in range(3 * EARLY):
        judged_sample(ledger, f"bob-{number}", session_id=stored_id(BOB, "s"))
    for number in range(2):
        judged_sample(ledger, f"alice-{number}", session_id=stored_id(ALICE, "s"))
    newest = ledger.views.newest_turn()
    assert ledger.decisions.probe_window(newest, ALICE) == Window(0, newest), "her first turns may always be compared"
    bobs = ledger.decisions.probe_window(newest, BOB)
    assert bobs == Window(0, 3 * EARLY // 2 + 1), "the newer half of his own may not"
    assert [each.owner for each in ledger.probes.candidates(0, newest + 1, 99, 4, ALICE)] == []
    ledger.samples.claim(0, 4, person=ALICE)
    assert {each.owner for each in ledger.probes.candidates(0, newest + 1, 99, 4, ALICE)} == {ALICE}
    assert {turn.session_id for turn in ledger.probes.newest_turns(9, 10_000, ALICE)} == {stored_id(ALICE, "s")}
