"""An adapter for each person in the trainer: nobody's batches reach anybody else, bit for bit, and every end of a process is met."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from groundwork.checkpoint_names import PEOPLE, STATE_OF_PERSON
from slime.backends.fsdp_utils.model import adapters_off
from slime.backends.trainer import people as people_module
from slime.backends.trainer.micro_batch import RolloutShard
from slime.exceptions import CheckpointError, PeopleError
from slime.weight_sync.people import Book, folder_of, forget, people_folder
from tests.helpers.group_fixtures import leave
from tests.helpers.people_ranks import PLAN, P, Q, R, data_of, start, states, update

__all__ = ["leave"]


def folders(run_dir: Path, mark: str) -> list[str]:
    return sorted(path.name for path in (people_folder(run_dir) / mark).iterdir())


def serving(run_dir: Path, mark: str) -> str:
    version = Book(people_folder(run_dir)).serving(mark)
    return version.name if version is not None else "base"


def weights_of(actor: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in actor.backend.pushed_weights()}


def run_of(model: Path, run_dir: Path, plan: list[tuple[str, int]], **changes: Any) -> dict[str, list[str]]:
    args, actor = start(model, run_dir, **changes)
    for mark, seed in plan:
        update(args, actor, mark, seed)
    actor.shutdown()
    return states(run_dir)


@pytest.fixture(scope="module")
def alone(tiny_random_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Each person's state after a run with this person's batches only."""
    found = {}
    for mark in (P, Q, R):
        folder = tmp_path_factory.mktemp("alone")
        found |= run_of(tiny_random_model, folder, [item for item in PLAN if item[0] == mark])
    return found


@pytest.mark.parametrize("in_memory", [0, 1, 32])
def test_each_person_is_trained_as_alone(
    tiny_random_model: Path, tmp_path: Path, alone: dict[str, list[str]], in_memory: int
) -> None:
    """With 0 everybody is read from disk between every two steps; R is new after others."""
    flags = {"adapter_per_person": True, "people_in_memory": in_memory}
    assert run_of(tiny_random_model, tmp_path, PLAN, **flags) == alone
    assert len(folders(tmp_path, P)) == 3
    assert len({digests[0] for digests in alone.values()}) == 3


def test_a_new_person_is_the_base_whoever_came_before(tiny_random_model: Path, tmp_path: Path) -> None:
    args, actor = start(tiny_random_model, tmp_path)
    update(args, actor, P, 0)
    assert actor.let_in(Q) == "0"
    shard = RolloutShard(data_of(args, 3))
    with adapters_off(actor.backend.model):
        base = actor.backend.scores(shard)
    assert all(map(torch.equal, actor.backend.scores(shard), base))
    after = weights_of(actor)
    actor.shutdown()
    args, actor = start(tiny_random_model, tmp_path / "other")
    actor.let_in(Q)
    first = weights_of(actor)
    assert all(torch.equal(value, first[name]) for name, value in after.items())
    actor.let_in(P)
    other = weights_of(actor)
    assert not any(torch.equal(value, other[name]) for name, value in first.items() if "lora_A" in name)
    actor.shutdown()


def test_a_gradient_that_is_not_finite_vetoes_one_person(
    tiny_random_model: Path, tmp_path: Path, alone: dict[str, list[str]]
) -> None:
    args, actor = start(tiny_random_model, tmp_path, people_in_memory=0)
    for number, (mark, seed) in enumerate(PLAN):
        update(args, actor, mark, seed)
        if number == 3:
            actor.let_in(R)
            metrics = actor.train(99, data_of(args, 99, rewards=[float("nan")] * 5))
            assert metrics["train/skipped_steps"] == 1.0
            assert actor.update_weights() == "1"
    actor.shutdown()
    found = states(tmp_path)
    assert (found[P], found[Q]) == (alone[P], alone[Q])
    assert found[R][0] == alone[R][0], "no weight of R moved"


def test_undone_steps_leave_nothing_of_one_person(
    tiny_random_model: Path, tmp_path: Path, alone: dict[str, list[str]]
) -> None:
    args, actor = start(tiny_random_model, tmp_path)
    for mark, seed in PLAN[:4]:
        update(args, actor, mark, seed)
    before = folders(tmp_path, P)
    assert actor.let_in(P) == "2"
    actor.take_snapshot()
    actor.train(50, data_of(args, 50))
    assert actor.versions() == ("2", "3")
    sent = actor.offer_candidate()
    candidate = folder_of(people_folder(tmp_path), sent.adapter)
    assert (candidate.parent.name, candidate.name.split("-")[0]) == (P, "3")
    assert serving(tmp_path, P) != sent.adapter, "nobody is served by a candidate"
    assert actor.update_weights() == "2", "an engine started again meanwhile"
    actor.undo_steps()
    actor.take_candidate_back()
    assert folders(tmp_path, P) == before
    for mark, seed in PLAN[4:]:
        version = update(args, actor, mark, seed)
    assert version == "4", "the refused candidate took its number along"
    assert folders(tmp_path, P)[-1].startswith("4-")
    actor.shutdown()
    assert states(tmp_path) == alone


def test_the_number_of_a_refused_version_is_not_used_again_after_a_restart(
    tiny_random_model: Path, tmp_path: Path
) -> None:
    """Also of a person who has no version yet."""
    save = {"save": str(tmp_path / "save")}
    args, actor = start(tiny_random_model, tmp_path, **save)
    actor.let_in(P)
    actor.take_snapshot()
    actor.train(0, data_of(args, 0))
    actor.offer_candidate()
    actor.undo_steps()
    actor.save(0)
    actor.publish(0)
    actor.shutdown()
    assert folders(tmp_path, P) == []
    args, actor = start(tiny_random_model, tmp_path, resume=True, load=save["save"], **save)
    assert update(args, actor, P, 0) == "2"
    actor.shutdown()


def test_an_accepted_candidate_serves_from_the_folder_that_was_asked(tiny_random_model: Path, tmp_path: Path) -> None:
    args, actor = start(tiny_random_model, tmp_path)
    actor.let_in(P)
    actor.take_snapshot()
    actor.train(0, data_of(args, 0))
    sent = actor.offer_candidate()
    actor.keep_steps()
    assert actor.update_weights() == "1"
    version = Book(people_folder(tmp_path)).serving(P)
    assert version is not None
    assert (version.name, version.sha256) == (sent.adapter, sent.digest)
    actor.shutdown()


def test_a_process_that_ends_while_a_candidate_is_asked_leaves_no_trace_of_it(
    tiny_random_model: Path, tmp_path: Path, alone: dict[str, list[str]]
) -> None:
    """Engines have been offered the candidate, also a second time; after the restart the same batch is trained once."""
    save = {"save": str(tmp_path / "save")}
    args, actor = start(tiny_random_model, tmp_path, **save)
    for mark, seed in PLAN[:2]:
        update(args, actor, mark, seed)
    actor.save(1)
    actor.publish(1)
    said = {mark: serving(tmp_path, mark) for mark in (P, Q)}
    kept = {mark: folders(tmp_path, mark) for mark in (P, Q)}
    actor.let_in(P)
    actor.take_snapshot()
    actor.train(2, data_of(args, PLAN[2][1]))
    for _ in range(2):
        actor.offer_candidate()
    assert len(folders(tmp_path, P)) == 3
    actor.shutdown()

    args, actor = start(tiny_random_model, tmp_path, resume=True, load=save["save"], **save)
    assert {mark: serving(tmp_path, mark) for mark in (P, Q)} == said
    assert {mark: folders(tmp_path, mark) for mark in (P, Q)} == kept
    for mark, seed in PLAN[2:]:
        update(args, actor, mark, seed)
    actor.shutdown()
    assert states(tmp_path) == alone


def test_a_run_goes_on_from_its_checkpoint_and_the_book_follows(
    tiny_random_model: Path, tmp_path: Path, alone: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends between a folder and the book after it published more than the checkpoint has."""
    save = {"save": str(tmp_path / "save"), "save_keep": 1}
    args, actor = start(tiny_random_model, tmp_path, **save)
    for mark, seed in PLAN[:2]:
        update(args, actor, mark, seed)
    actor.save(1)
    actor.publish(1)
    said = {mark: serving(tmp_path, mark) for mark in (P, Q)}
    for mark, seed in PLAN[2:4]:
        update(args, actor, mark, seed)
    with monkeypatch.context() as broken:
        broken.setattr(people_module, "publish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            update(args, actor, *PLAN[4])
    assert [len(folders(tmp_path, mark)) for mark in (P, Q, R)] == [2, 2, 1]
    actor.shutdown()

    args, actor = start(tiny_random_model, tmp_path, resume=True, load=save["save"], **save)
    assert {mark: serving(tmp_path, mark) for mark in (P, Q, R)} == said | {R: "base"}
    assert [len(folders(tmp_path, mark)) for mark in (P, Q, R)] == [1, 1, 0], "what nobody needs is deleted"
    assert actor.versions() == ("0", "0")
    for mark, seed in PLAN[2:]:
        update(args, actor, mark, seed)
    actor.shutdown()
    assert states(tmp_path) == alone


def test_what_a_checkpoint_has_and_the_book_has_not_serves_after_a_restart(
    tiny_random_model: Path, tmp_path: Path
) -> None:
    """A checkpoint that is due comes before the publication."""
    save = {"save": str(tmp_path / "save")}
    args, actor = start(tiny_random_model, tmp_path, **save)
    update(args, actor, P, 0)
    old = serving(tmp_path, P)
    actor.let_in(P)
    actor.train(1, data_of(args, 1))
    folder = Path(actor.save(1))
    actor.publish(1)
    assert serving(tmp_path, P) == old
    actor.shutdown()
    with pytest.raises(CheckpointError, match="use its --run-dir"):
        start(tiny_random_model, tmp_path / "other", resume=True, load=save["save"], **save)
    dist.destroy_process_group()
    _, actor = start(tiny_random_model, tmp_path, resume=True, load=save["save"], **save)
    assert serving(tmp_path, P) == json.loads((folder / "meta.json").read_text())[PEOPLE][P] != old
    assert [version.number for version in Book(people_folder(tmp_path)).versions(P)] == [2, 1]
    assert actor.let_in(P) == "2"
    actor.shutdown()


def test_one_person_goes_back_and_numbers_rise(
    tiny_random_model: Path, tmp_path: Path, alone: dict[str, list[str]]
) -> None:
    args, actor = start(tiny_random_model, tmp_path, people_in_memory=0)
    first = {}
    for mark, seed in PLAN:
        if update(args, actor, mark, seed) == "1":
            first[mark] = (serving(tmp_path, mark), states(tmp_path)[mark])
    actor.restore_person(P, first[P][0])
    assert actor.versions() == ("3", "4")
    assert actor.update_weights() == "4"
    assert states(tmp_path) == alone | {P: first[P][1]}
    for _, seed in PLAN[2::3][:1]:
        update(args, actor, P, seed)
    actor.restore_person(P, None)
    assert actor.update_weights() == "6"
    weights = dict(actor.backend.pushed_weights())
    assert all(not value.any() for name, value in weights.items() if "lora_B" in name)
    actor.shutdown()
    assert states(tmp_path)[Q] == alone[Q]


def test_whose_folders_somebody_deleted_begins_anew(tiny_random_model: Path, tmp_path: Path) -> None:
    args, actor = start(tiny_random_model, tmp_path)
    assert update(args, actor, P, 0) == update(args, actor, Q, 0) == "1"
    old = states(tmp_path)
    for mark in (P, Q):
        shutil.rmtree(people_folder(tmp_path) / mark)
        assert update(args, actor, mark, 0) == "1"
    assert states(tmp_path) == old
    actor.shutdown()


def test_whose_candidate_somebody_deleted_is_served_by_the_base(tiny_random_model: Path, tmp_path: Path) -> None:
    """A person is forgotten while the gate decides, and again after the checkpoint; then the run goes on without the old steps."""
    save = {"save": str(tmp_path / "save")}
    args, actor = start(tiny_random_model, tmp_path, **save)
    update(args, actor, P, 0)
    actor.let_in(P)
    actor.take_snapshot()
    actor.train(1, data_of(args, 1))
    actor.offer_candidate()
    forget(tmp_path, P)
    actor.keep_steps()
    actor.save(1)
    actor.publish(1)
    actor.update_weights()
    assert (serving(tmp_path, P), (people_folder(tmp_path) / P).exists()) == ("base", False)
    actor.update_weights()  # an engine started again, or awoke after a checkpoint
    assert (serving(tmp_path, P), (people_folder(tmp_path) / P).exists()) == ("base", False)
    assert update(args, actor, P, 0) == "1"
    actor.save(2)
    actor.publish(2)
    forget(tmp_path, P)
    assert update(args, actor, P, 0) == "1"
    actor.shutdown()
    args, actor = start(tiny_random_model, tmp_path, resume=True, load=save["save"], **save)
    assert serving(tmp_path, P) == "base"
    assert actor.let_in(P) == "0"
    actor.shutdown()


def test_who_was_forgotten_after_a_skipped_step_does_not_return(tiny_random_model: Path, tmp_path: Path) -> None:
    """The step gave no version, so the state had no folder of its own yet."""
    save = {"save": str(tmp_path / "save")}
    args, actor = start(tiny_random_model, tmp_path, **save)
    update(args, actor, P, 0)
    actor.let_in(P)
    assert actor.train(1, data_of(args, 1, rewards=[float("nan")] * 5))["train/skipped_steps"] == 1.0
    assert actor.update_weights() == "1"
    forget(tmp_path, P)
    actor.save(1)
    actor.publish(1)
    actor.update_weights()
    assert not (people_folder(tmp_path) / P).exists()
    assert update(args, actor, P, 0) == "1"
    actor.shutdown()
    forget(tmp_path, P)
    args, actor = start(tiny_random_model, tmp_path, resume=True, load=save["save"], **save)
    assert (serving(tmp_path, P), actor.let_in(P)) == ("base", "0")
    actor.shutdown()


@pytest.mark.parametrize("moment", ["before the folder", "in the adapter", "in the state", "before the book"])
def test_who_is_forgotten_while_the_trainer_writes_leaves_nothing_and_begins_anew(
    tiny_random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Forgetting deletes the folder that is being written; others, and the run, go on."""
    save = {"save": str(tmp_path / "save")}
    args, actor = start(tiny_random_model, tmp_path, **save)
    update(args, actor, Q, 0)
    first = update(args, actor, P, 0), states(tmp_path)[P]
    calls = {
        "before the folder": (people_module, "fresh_folder"),
        "in the adapter": (people_module, "put_adapter"),
        "in the state": (people_module.HostCopy, "write"),
        "before the book": (people_module, "publish"),
    }
    place, name = calls[moment]
    original = getattr(place, name)

    def forgets(*arguments: Any) -> Any:
        forget(tmp_path, P)
        return original(*arguments)

    with monkeypatch.context() as busy:
        busy.setattr(place, name, forgets)
        update(args, actor, P, 1)
    assert (serving(tmp_path, P), (people_folder(tmp_path) / P).exists()) == ("base", False)
    actor.save(1)
    actor.publish(1)
    assert P not in (tmp_path / "save" / "iter_0000002" / "meta.json").read_text()
    assert (update(args, actor, P, 0), states(tmp_path)[P]) == first
    assert update(args, actor, Q, 1) == "2"
    actor.shutdown()
    args, actor = start(tiny_random_model, tmp_path, resume=True, load=save["save"], **save)
    assert (serving(tmp_path, P), actor.let_in(P), actor.let_in(Q)) == ("base", "0", "1")
    actor.shutdown()


def test_a_deletion_that_a_crash_cut_short_brings_nobody_back(
    tiny_random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The book has forgotten the person, the folder is still there; so it is after a crash before a first publication."""
    save = {"save": str(tmp_path / "save")}
    args, actor = start(tiny_random_model, tmp_path, **save)
    actor.let_in(P)
    actor.train(0, data_of(args, 0))
    actor.save(0)
    actor.publish(0)
    with monkeypatch.context() as cut:
        cut.setattr("slime.weight_sync.people._delete", lambda folder: None)
        forget(tmp_path, P)
    assert folders(tmp_path, P)
    actor.shutdown()
    args, actor = start(tiny_random_model, tmp_path, resume=True, load=save["save"], **save)
    assert (serving(tmp_path, P), (people_folder(tmp_path) / P).exists()) == ("base", False)
    assert update(args, actor, P, 0) == "1"
    actor.shutdown()


def test_who_is_forgotten_while_a_version_is_read_begins_anew(
    tiny_random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args, actor = start(tiny_random_model, tmp_path, people_in_memory=0)
    update(args, actor, P, 0)
    name = serving(tmp_path, P)
    update(args, actor, P, 1)
    update(args, actor, Q, 0)
    read = people_module.HostCopy.read

    def forgets(*arguments: Any) -> None:
        forget(tmp_path, P)
        read(*arguments)

    with monkeypatch.context() as busy:
        busy.setattr(people_module.HostCopy, "read", forgets)
        assert actor.let_in(P) == "0"
    update(args, actor, P, 0)
    update(args, actor, P, 1)
    name = Book(people_folder(tmp_path)).versions(P)[1].name
    with monkeypatch.context() as busy:
        busy.setattr(people_module.HostCopy, "read", forgets)
        actor.restore_person(P, name)
    actor.update_weights()
    assert (serving(tmp_path, P), (people_folder(tmp_path) / P).exists()) == ("base", False)
    actor.shutdown()


def test_weights_that_left_the_device_are_published(
    tiny_random_model: Path, tmp_path: Path, alone: dict[str, list[str]]
) -> None:
    args, actor = start(tiny_random_model, tmp_path)
    for mark, seed in PLAN:
        actor.let_in(mark)
        actor.train(seed, data_of(args, seed))
        actor.offload()
        actor.update_weights()
        actor.onload()
    actor.shutdown()
    assert states(tmp_path) == alone


def test_a_machine_that_does_not_share_the_folder_is_named_at_the_start(
    tiny_random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(people_module, "signature", lambda folder: None)
        with pytest.raises(
            PeopleError, match=r"training rank 0 does not see .* give --run-dir a folder that all machines"
        ):
            start(tiny_random_model, tmp_path)
    dist.destroy_process_group()
    _, actor = start(tiny_random_model, tmp_path)
    told = people_module._Told(actor.args, device=actor.device, address="")
    own = people_module.signature(people_folder(tmp_path))
    for seen in ([own], [own, own]):
        monkeypatch.setattr(told, "_call", lambda *_, seen=seen: seen)
        told._join()
    for other in (None, "of an earlier start"):
        monkeypatch.setattr(told, "_call", lambda *_, other=other: [own, other])
        with pytest.raises(PeopleError, match="policy engine 1 does not see"):
            told._join()
    actor.shutdown()


def test_another_runs_state_is_refused(tiny_random_model: Path, tmp_path: Path) -> None:
    args, actor = start(tiny_random_model, tmp_path, people_in_memory=0)
    update(args, actor, P, 0)
    actor.let_in(Q)
    folder = folder_of(people_folder(tmp_path), serving(tmp_path, P))
    file = folder / STATE_OF_PERSON
    meta = json.loads(file.read_text())
    for changes, says in (
        ({"world_size": 3}, "is of 3 training ranks: use as many"),
        ({"backend": "megatron"}, "add --train-backend megatron"),
        ({"adapters": meta["adapters"] | {"rank": 2}}, "--lora-rank 2"),
    ):
        file.write_text(json.dumps(meta | changes))
        with pytest.raises(CheckpointError, match=says):
            actor.let_in(P)
    file.write_text(json.dumps(meta))
    (folder / "training.safetensors").write_bytes(b"cut off")
    with pytest.raises(CheckpointError, match=r"training\.safetensors cannot be read"):
        actor.let_in(P)
    actor.shutdown()


def test_checkpoints_of_one_policy_and_of_everybody_are_told_apart(tiny_random_model: Path, tmp_path: Path) -> None:
    save = {"save": str(tmp_path / "save")}
    shared = save | {"adapter_per_person": False}
    args, actor = start(tiny_random_model, tmp_path, **shared)
    actor.train(0, data_of(args, 0))
    actor.save(0)
    actor.publish(0)
    actor.shutdown()
    with pytest.raises(CheckpointError, match="remove --adapter-per-person"):
        start(tiny_random_model, tmp_path, load=save["save"], resume=True, **save)
