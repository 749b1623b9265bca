"""Going back to an earlier version on command: while a run waits, is paused or serves, after a loss, and when it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import ray

from groundwork.paused import pause, resume
from groundwork.process import Stopped
from slime.checkpoints.versions import saved_versions
from slime.exceptions import RankLostError, TrainerError
from slime.ray import run as run_module
from slime.ray.run import Run
from slime.updates.rollback import NAME, ask_rollback, asked_rollback, forget_rollback
from tests.unit.ray import test_run_restart
from tests.unit.ray.test_run_restart import Remote, World, loop, world

__all__ = ["world"]  # a fixture


class Trainer(test_run_restart.Trainer):
    """Counts its pushes as versions, and writes what a checkpoint tells of itself."""

    version = 0

    def update_weights(self) -> str:
        self.version += 1
        self._do(f"push {self.version}")
        return str(self.version)

    def save(self, rollout_id: int) -> str:
        checkpoint(self.world.save, rollout_id, self.version)
        return super().save(rollout_id)

    def restore(self, iteration: int) -> None:
        self._do(f"restore {iteration}")


def checkpoint(root: Path, rollout_id: int, version: int) -> None:
    folder = root / f"iter_{rollout_id + 1:07d}"
    folder.mkdir(exist_ok=True)
    (folder / "meta.json").write_text(json.dumps({"rollout_id": rollout_id, "weight_version": version}))


def make_run(world: World, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run with a checkpoint after each of four rollouts."""
    monkeypatch.setattr(run_module, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(world, "trainer", lambda args, *_: make_trainer(world, args))
    monkeypatch.setattr(run_module, "Trainer", world.trainer)
    run = test_run_restart.make_run(world, interval=1)
    manager: Any = run.processes.manager._actor
    monkeypatch.setattr(
        manager,
        "on_weights_restored",
        Remote(lambda to, since, version: world.log.append(f"restored {to} from {since} as {version}")),
        raising=False,
    )
    return run


def make_trainer(world: World, args: Any) -> Trainer:
    world.made["trainer"] += 1
    return Trainer(world, args, f"trainer {world.made['trainer']}")


def after_note(world: World) -> list[str]:
    start = next(place for place, line in enumerate(world.log) if "restore" in line)
    return world.log[start : start + 6]


def test_a_run_that_waits_for_a_batch_goes_back_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The versions only rise, and the checkpoint of the last step is replaced by what serves."""
    run = make_run(world, monkeypatch)
    looks: list[int] = []

    def wait(references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        late = isinstance(references[0], dict) and references[0].get("shards") == ["manager 1 batch 3"]
        if late and not looks:
            looks.append(ask_rollback(world.save, 1) is not None)
            return [], references
        if late and len(looks) == 1:
            looks.append(asked_rollback(world.save) is None)
        return references, []

    monkeypatch.setattr(ray, "wait", wait)
    run.repeat(loop)
    assert looks == [True, True], "it did not wait for the batch"
    assert after_note(world) == [
        "trainer 1 restore 1", "trainer 1 push 4", "restored 0 from 2 as 4",
        "trainer 1 save 2", "trainer 1 publish 2", "trainer 1 published 2",
    ]  # fmt: skip
    assert "trainer 1 train 3 on manager 1 batch 3" in world.log[world.log.index("trainer 1 restore 1") :]
    assert "weights 1 serve again, as version 4" in capsys.readouterr().out
    assert [(each.weight_version, each.rollout_id) for each in saved_versions(world.save)] == [
        ("1", 0), ("2", 1), ("4", 2), ("5", 3),
    ]  # fmt: skip


def test_a_paused_run_and_one_that_only_serves_go_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(world, monkeypatch)
    run.repeat(loop)

    def ask_and_go_on(seconds: float) -> bool:
        if asked_rollback(world.save) is None:
            resume(world.save)
        return False

    monkeypatch.setattr(run.stop, "wait", ask_and_go_on)
    pause(world.save, 3, "train/ppo_kl>0.5")
    ask_rollback(world.save, "2")
    run.updates.wait_while_paused(run._served_a_moment)
    assert after_note(world)[:3] == ["trainer 1 restore 2", "trainer 1 push 5", "restored 1 from 3 as 5"]
    ask_rollback(world.save, "1")
    monkeypatch.setattr(run.stop, "wait", lambda seconds: asked_rollback(world.save) is None)
    run.serve_until_stopped()
    assert "restored 0 from 3 as 6" in world.log


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("9", "no rollback: no checkpoint in {save} holds weights 9; they hold 1, 2, 3, 4"),
        ("4", "no rollback: weights 4 serve already"),
    ],
)
def test_what_cannot_be_gone_back_to_is_told_and_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], version: str, says: str
) -> None:
    run = make_run(world, monkeypatch)
    run.repeat(loop)
    before = list(world.log)
    for write in (lambda: ask_rollback(world.save, version), lambda: (world.save / NAME).write_text("{")):
        write()
        run._roll_back()
        assert asked_rollback(world.save) is None
    said = capsys.readouterr().out
    assert says.format(save=world.save) in said
    assert f"holds weights of {world.save / NAME}, which is unreadable" in said
    assert world.log == before


def test_a_rank_that_dies_on_the_way_back_keeps_the_note(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(world, monkeypatch)
    run.repeat(loop)
    ask_rollback(world.save, "2")
    world.deaths = [("restore 2", RankLostError("a rank died", "restore"))]
    with pytest.raises(RankLostError):
        run._roll_back()
    assert asked_rollback(world.save) is not None
    run._roll_back()
    assert asked_rollback(world.save) is None
    assert "restored 1 from 3 as 5" in world.log


def test_a_checkpoint_that_cannot_be_read_is_not_met_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(world, monkeypatch)
    run.repeat(loop)
    ask_rollback(world.save, "2")
    world.deaths = [("restore 2", TrainerError("rank 0 failed in restore"))]
    with pytest.raises(TrainerError):
        run._roll_back()
    assert asked_rollback(world.save) is None


def test_who_asks_again_meanwhile_is_heard(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(world, monkeypatch)
    run.repeat(loop)
    ask_rollback(world.save, "2")
    original = Trainer.restore

    def restore(self: Trainer, iteration: int) -> None:
        if iteration == 2:
            ask_rollback(world.save, "1")
        original(self, iteration)

    monkeypatch.setattr(Trainer, "restore", restore)
    run._roll_back()
    run._roll_back()
    assert [line for line in world.log if "restored" in line] == ["restored 1 from 3 as 5", "restored 0 from 3 as 6"]
    assert asked_rollback(world.save) is None


def test_a_signal_keeps_the_note(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(world, monkeypatch)
    run.repeat(loop)
    ask_rollback(world.save, "2")
    world.deaths = [("restore 2", Stopped())]
    with pytest.raises(Stopped):
        run._roll_back()
    assert asked_rollback(world.save) is not None


def test_a_signal_in_the_push_does_not_save_older_weights_as_later_steps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data source would count steps as trained that the checkpoint does not have."""
    run = make_run(world, monkeypatch)
    run.args.save_interval = 100
    run.args.num_rollout = 5
    checkpoint(world.save, 0, 1)
    run.train(0, run.wait(run.generate(0)))
    run.updates.save(0)
    run.train(1, run.wait(run.generate(1)))
    ask_rollback(world.save, "1")
    world.deaths = [("push 3", Stopped())]
    with pytest.raises(Stopped):
        run._roll_back()
    assert not run.updates.unsaved
    run._roll_back()
    assert asked_rollback(world.save) is None
    assert (run.updates.progress.last, run.updates.progress.saved) == (1, 1)


@pytest.mark.parametrize("resumes", [True, False])
def test_a_note_outlives_the_driver_and_not_a_new_run(
    world: World, monkeypatch: pytest.MonkeyPatch, resumes: bool
) -> None:
    if resumes:
        (world.save / "latest_checkpointed_iteration.txt").write_text("0")
    ask_rollback(world.save, 3)
    test_run_restart.start(world, monkeypatch, resume=resumes)
    assert (asked_rollback(world.save) is not None) is resumes
    forget_rollback(world.save)
    assert asked_rollback(world.save) is None


def test_versions_are_those_of_published_checkpoints(tmp_path: Path) -> None:
    assert saved_versions(tmp_path) == []
    for rollout_id, version in ((0, 1), (1, 2), (2, 2), (3, 3)):
        checkpoint(tmp_path, rollout_id, version)
    (tmp_path / "iter_0000009.tmp").mkdir()
    assert saved_versions(tmp_path) == [], "nothing is published"
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("3")
    found = saved_versions(tmp_path)
    assert [(each.weight_version, each.rollout_id, each.iteration) for each in found] == [
        ("1", 0, 1), ("2", 1, 2), ("2", 2, 3),
    ]  # fmt: skip
    assert [each.folder.name for each in found] == ["iter_0000001", "iter_0000002", "iter_0000003"]
