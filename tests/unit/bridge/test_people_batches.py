"""With an adapter per person the bridge leases one person's batch, and records its step, staleness and rollback as this person's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from groundwork.checkpoint_names import STATE_OF_PERSON
from groundwork.people import mark_of
from groundwork.private_files import private_folder
from lab.testkit.ledger_records import judged_sample, make_turn
from openclaw.owners import stored_id
from openclaw.runtime.adapters import forget_all
from openclaw.runtime.process import RuntimeSupervisor
from openclaw.training import rollout
from openclaw.training.pace import Due
from openclaw.training.rollout import LedgerDataSource, LiveRollout
from slime.rollout.base_types import RolloutFnTrainOutput
from slime.weight_sync import people
from tests.helpers.rollout_args import rollout_args

LIVE = LiveRollout("m.M")
ALICE, BOB = "alice", "bob"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LedgerDataSource]:
    monkeypatch.delenv("OPENCLAW_LEDGER", raising=False)
    supervisor = RuntimeSupervisor(
        lambda: (_ for _ in ()).throw(AssertionError("nothing is started")),
        health_url="http://none",
        log_path=tmp_path / "runtime.log",
    )
    monkeypatch.setattr(supervisor, "check", lambda: None)
    monkeypatch.setattr(rollout, "start_runtime", lambda args, method_path: supervisor)
    monkeypatch.setattr(rollout, "POLL_SECONDS", 0.005)
    args = rollout_args(
        tmp_path, rollout_function_path=f"{__name__}.LIVE", adapter_per_person=True, max_weight_staleness=1
    )
    source = LedgerDataSource(args)
    source.before_rollouts()
    yield source
    source.ledger.close()


def say(source: LedgerDataSource, person: str, *names: str) -> None:
    for name in names:
        judged_sample(source.ledger, f"{person}-{name}", session_id=stored_id(person, "s"))


def batch(source: LedgerDataSource, rollout_id: int) -> RolloutFnTrainOutput:
    output = LIVE(source.args, rollout_id, source)
    assert isinstance(output, RolloutFnTrainOutput)
    return output


def adapter(run: Path, person: str) -> Path:
    """Publish version 1 of a person's adapter, and return its folder."""
    name = people.adapter_name(1, "0123abcd", 1, mark_of(person))
    folder = people.folder_of(people.people_folder(run), name)
    private_folder(folder)
    (folder / people.WEIGHTS).write_text(name)
    people.publish(run, name)
    return folder


def test_each_batch_and_step_is_one_persons(source: LedgerDataSource) -> None:
    say(source, ALICE, "0")
    say(source, BOB, "0", "1")
    say(source, ALICE, "1")
    first, second = batch(source, 0), batch(source, 1)
    assert {first.person, second.person} == {ALICE, BOB}
    assert (first.passes, second.passes) == (None, None), "a full batch, as the flags say"
    for rollout_id, output in enumerate((first, second)):
        metadata = [sample.metadata for group in output.samples for sample in group]
        assert {each["person"] for each in metadata} == {output.person}
        source.weights_live(rollout_id, "1")
    live = {person: source.ledger.samples.live_weight_version(person) for person in (ALICE, BOB, None)}
    assert live == {ALICE: "1", BOB: "1", None: None}


def test_a_batch_that_is_collected_again_is_of_whom_it_has_now(source: LedgerDataSource) -> None:
    """The trainer died with Alice's batch; her samples are gone when the rollout of this number is collected again."""
    say(source, ALICE, "0", "1")
    assert batch(source, 0).person == ALICE
    source.load(-1)
    source.ledger.sessions.forget_person(ALICE)
    say(source, BOB, "0", "1")
    assert batch(source, 0).person == BOB
    source.weights_live(0, "1")
    assert [source.ledger.samples.live_weight_version(person) for person in (ALICE, BOB)] == [None, "1"]


def test_staleness_counts_a_persons_own_updates(source: LedgerDataSource) -> None:
    """The recorded replies are of version 1."""
    for rollout_id in range(3):
        source.ledger.samples.record_step(rollout_id, str(rollout_id + 1), 1.0, 2.0, BOB)
    say(source, ALICE, "0", "1")
    assert {sample.metadata["staleness"] for group in batch(source, 5).samples for sample in group} == {1}
    assert source.live_version(ALICE) == "0", "the base"
    source.ledger.samples.record_step(6, "2", 1.0, 2.0, ALICE)
    say(source, BOB, "0", "1")
    say(source, ALICE, "2", "3")
    output = batch(source, 7)
    assert output.person == ALICE, "bob's are two of his own updates old"
    assert {sample.metadata["staleness"] for group in output.samples for sample in group} == {1}


def test_a_rollback_of_a_person_is_recorded(source: LedgerDataSource) -> None:
    for rollout_id, version in enumerate("12"):
        say(source, ALICE, f"{version}-0", f"{version}-1")
        batch(source, rollout_id)
        source.weights_live(rollout_id, version)
    source.save(1)
    source.person_restored(ALICE, "1", "3")
    assert source.ledger.samples.live_weight_version(ALICE) == "3"
    assert source.ledger.views.counts()["sample_reasons"] == {"rollback": 2}
    with pytest.raises(ValueError, match="knows no version 9"):
        source.person_restored(ALICE, "9", "4")


def test_a_rollback_to_a_version_that_a_stopped_run_did_not_tell_of(source: LedgerDataSource) -> None:
    """Its checkpoint has version 1, and the next run served it."""
    for rollout_id, version in ((0, None), (1, "2")):
        say(source, ALICE, f"{rollout_id}-0", f"{rollout_id}-1")
        batch(source, rollout_id)
        if version is not None:
            source.weights_live(rollout_id, version)
    source.save(1)
    (adapter(Path(source.args.run_dir), ALICE) / STATE_OF_PERSON).write_text('{"rollout_id": 0}')
    source.person_restored(ALICE, "1", "3")
    assert source.ledger.samples.live_weight_version(ALICE) == "3"
    assert source.ledger.views.counts()["sample_reasons"] == {"rollback": 2}


@pytest.mark.parametrize("known", [False, True])
def test_a_rollback_behind_an_update_that_was_not_told_unlearns_its_samples(
    source: LedgerDataSource, known: bool
) -> None:
    """A checkpoint has the update, so its samples are trained; with a gate a decision knows of it. A batch that waits stays."""
    for rollout_id in (0, 1):
        say(source, ALICE, f"{rollout_id}-0", f"{rollout_id}-1")
        batch(source, rollout_id)
        if known:
            source.ledger.decisions.record(rollout_id, "step", str(rollout_id + 1), "may serve", person=ALICE)
    source.weights_live(0, "1")
    source.save(1)
    say(source, ALICE, "2-0", "2-1")
    batch(source, 2)
    source.person_restored(ALICE, "1", "3")
    assert source.ledger.views.counts()["samples"] == {"trained": 2, "dropped": 2, "leased": 2}
    assert source.ledger.views.counts()["sample_reasons"] == {"rollback": 2}
    source.load(1)
    assert source.ledger.views.counts()["samples"] == {"trained": 2, "dropped": 2, "ready": 2}


def test_a_rollback_of_who_is_forgotten_meanwhile_ends_nothing(source: LedgerDataSource) -> None:
    source.person_restored(ALICE, "1", "3")
    assert source.ledger.views.step_count() == 0


def test_an_update_of_a_person_who_was_forgotten_meanwhile_leaves_no_adapter(source: LedgerDataSource) -> None:
    say(source, ALICE, "0", "1")
    assert batch(source, 0).person == ALICE
    adapter(Path(source.args.run_dir), BOB)
    forget_all(source.ledger, source.args.run_dir, None, ALICE)
    folder = adapter(Path(source.args.run_dir), ALICE)
    source.weights_live(0, "1")
    assert not folder.exists()
    assert people.Book(people.people_folder(source.args.run_dir)).lines().keys() == {mark_of(BOB)}
    assert source.ledger.views.step_count() == 0


def test_who_deletes_the_only_conversation_during_a_step_keeps_the_adapter(source: LedgerDataSource) -> None:
    """Forgetting sessions unlearns nothing; only forgetting the person does."""
    say(source, ALICE, "0", "1")
    assert batch(source, 0).person == ALICE
    folder = adapter(Path(source.args.run_dir), ALICE)
    for name in source.ledger.sessions.of_person(ALICE):
        source.ledger.sessions.forget(name)
    source.weights_live(0, "1")
    assert folder.exists()
    assert source.live_version(ALICE) == "1"


def test_who_was_forgotten_and_came_back_meanwhile_gets_no_adapter_of_before(source: LedgerDataSource) -> None:
    say(source, ALICE, "0", "1")
    assert batch(source, 0).person == ALICE
    adapter(Path(source.args.run_dir), BOB)
    forget_all(source.ledger, source.args.run_dir, None, ALICE)
    source.ledger.turns.record(make_turn("new", session_id=stored_id(ALICE, "new"), created_at=time.time() + 60.0))
    folder = adapter(Path(source.args.run_dir), ALICE)
    source.weights_live(0, "1")
    assert not folder.exists()
    assert source.live_version(ALICE) == "0", "the base, as engines say"


def test_a_step_whose_samples_are_gone_after_a_restart_is_not_everybodys(source: LedgerDataSource) -> None:
    """The manager that collected the batch died before the step was told."""
    source.ledger.samples.record_step(0, "1", 1.0, 2.0, BOB)
    source.weights_live(1, "2")
    assert [each.person for each in source.ledger.views.newest_steps(9)] == [BOB]


def test_what_is_due_while_everybody_is_paused_or_silent(source: LedgerDataSource) -> None:
    say(source, ALICE, "0")
    say(source, BOB, "0")
    assert source.pace.due(0, 2) is None, "two people's samples are no batch"
    say(source, BOB, "1")
    assert source.pace.due(0, 2) == Due(2, BOB)
