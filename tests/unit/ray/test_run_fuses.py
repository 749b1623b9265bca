"""A fuse holds back the step, pauses training, keeps serving; a restart stays paused until someone resumes (finding B7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from groundwork.exceptions import ConfigError
from groundwork.paused import pause, paused, paused_people, resume
from groundwork.process import Stopped
from slime.args import Arguments
from slime.exceptions import RankLostError
from slime.observability.metric_utils import STEPS
from slime.ray import run as run_module
from slime.ray.run import Run
from slime.updates.update import Update
from slime.updates.updates import Fuses
from slime.utils import logging_utils
from slime.utils.fuses import blown
from slime.utils.metric_names import PAUSED, RECENT_ENTROPY
from tests.unit.ray import test_run_restart
from tests.unit.ray.test_run_restart import Remote, World, loop, steps, world

__all__ = ["world"]  # a fixture

BAD = 2
BOUND = ["train/ppo_kl>0.5", "rollout/response_len/of_limit>0.9"]


def make_run(world: World, monkeypatch: pytest.MonkeyPatch, *, where: str = "loss", fuses: Any = BOUND) -> Run:
    """Return a run whose rollout `BAD` blows a fuse: of its ``loss`` or of its ``batch``."""
    run = test_run_restart.make_run(world, interval=10, rollouts=5, fuses=fuses)
    manager: Any = run.processes.manager._actor
    monkeypatch.setattr(run_module, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(
        manager,
        "on_step_refused",
        Remote(lambda rollout_id, why: world.log.append(f"refused {rollout_id}: {why}")),
        raising=False,
    )
    monkeypatch.setattr(manager, "generate", Remote(lambda rollout_id: batch(rollout_id, where)))
    train = test_run_restart.Trainer.train

    def held(self: Any, rollout_id: int, shards: Any, critic_shards: Any, passes: int = 1) -> dict[str, Any]:
        train(self, rollout_id, shards, critic_shards)
        step = {"train/ppo_kl": 0.7 if where == "loss" and rollout_id == BAD else 0.1}
        # the trainer's own decision, slime.backends.trainer.micro_batch
        return {STEPS: [{**step, "train/fuse_held": float(blown(self.args.fuses, step) is not None)}]}

    monkeypatch.setattr(test_run_restart.Trainer, "train", held)
    return run


def batch(rollout_id: int, where: str) -> dict[str, Any]:
    share = 0.95 if where == "batch" and rollout_id == BAD else 0.2
    metrics = {"rollout/response_len/of_limit": share}
    return {"shards": [f"batch {rollout_id}"], "critic_shards": [], "metrics": metrics}


def resumes_after(run: Run, monkeypatch: pytest.MonkeyPatch, looks: int) -> list[int]:
    """Let someone resume the run at its ``looks``-th look for restarted engines; return a counter of the looks."""
    seen: list[int] = []

    def recover() -> None:
        seen.append(1)
        if len(seen) == looks:
            resume(run.args.run_dir)

    monkeypatch.setattr(run.engines, "recover", recover)
    return seen


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("loss", "train/ppo_kl>0.5 (it is 0.7)"),
        ("batch", "rollout/response_len/of_limit>0.9 (it is 0.95)"),
    ],
)
def test_a_blown_fuse_pauses_and_nothing_of_it_serves(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str, why: str
) -> None:
    run = make_run(world, monkeypatch, where=where)
    looks = resumes_after(run, monkeypatch, 3)
    run.repeat(loop)
    asked = [line.split(" on ")[0] for line in steps(world)]
    trained = [0, 1, 2, 3, 4] if where == "loss" else [0, 1, 3, 4]
    assert asked == [f"trainer 1 train {number}" for number in trained]
    assert f"refused {BAD}: {why}" in world.log
    begin, end = world.log.index(f"refused {BAD}: {why}"), world.log.index("trainer 1 train 3 on batch 3")
    assert world.log[begin + 1 : end] == [
        f"trainer 1 save {BAD}", f"manager 1 save {BAD}", f"trainer 1 publish {BAD}", f"trainer 1 published {BAD}",
    ]  # fmt: skip
    assert [line for line in world.log if " live " in line] == [f"manager 1 live {n} 1" for n in (0, 1, 3, 4)]
    assert len(looks) >= 3, "engines are looked after during the pause"
    said = capsys.readouterr().out
    assert f"training is paused since rollout {BAD}: {why}; the last good weights keep serving" in said
    assert f"to go on: openclaw-rl resume {run.args.run_dir}" in said
    assert "training goes on" in said
    assert paused(run.args.run_dir) is None


@pytest.mark.parametrize("where", ["loss", "batch"])
def test_one_persons_batch_pauses_this_person_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    run = make_run(world, monkeypatch, where=where)
    manager: Any = run.processes.manager._actor
    monkeypatch.setattr(manager, "generate", Remote(lambda number: {**batch(number, where), "person": "alice"}))
    run.repeat(loop)
    assert [line for line in world.log if " live " in line] == [f"manager 1 live {n} 1" for n in (0, 1, 3, 4)]
    assert any(line.startswith(f"refused {BAD}: ") for line in world.log)
    assert paused(run.args.run_dir) is None
    assert paused_people(run.args.run_dir)["alice"].rollout_id == BAD
    assert f"training of alice is paused since rollout {BAD}" in capsys.readouterr().out


def test_a_gradient_that_is_not_finite_pauses_its_person(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(world, monkeypatch)
    manager: Any = run.processes.manager._actor
    people = {0: None, 1: "alice", 2: "", 3: "bob", 4: "bob"}
    monkeypatch.setattr(manager, "generate", Remote(lambda number: {**batch(number, ""), "person": people[number]}))

    def train(self: Any, rollout_id: int, shards: Any, critic_shards: Any, passes: int) -> dict[str, Any]:
        return {STEPS: [{"train/loss": 1.0, "train/skipped_steps": float(rollout_id in (0, 2))}]}

    monkeypatch.setattr(test_run_restart.Trainer, "train", train)
    run.repeat(loop)
    assert list(paused_people(run.args.run_dir)) == [""], "of several people's batch nobody is paused"
    assert "training of local is paused since rollout 2" in str(paused_people(run.args.run_dir)[""])


def test_a_fuse_in_a_later_pass_undoes_those_before(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(world, monkeypatch)
    manager: Any = run.processes.manager._actor
    asked: list[str] = []
    monkeypatch.setattr(manager, "generate", Remote(lambda number: {**batch(number, ""), "passes": 4 - number}))
    train = test_run_restart.Trainer.train

    def held(self: Any, rollout_id: int, shards: Any, critic_shards: Any, passes: int) -> dict[str, Any]:
        asked.append(f"{passes} passes")
        train(self, rollout_id, shards, critic_shards)
        return {STEPS: [{"train/ppo_kl": 0.1}, {"train/ppo_kl": 0.7, "train/fuse_held": float(rollout_id == 1)}]}

    monkeypatch.setattr(test_run_restart.Trainer, "train", held)
    for name in ("take_snapshot", "keep_steps", "undo_steps"):
        monkeypatch.setattr(test_run_restart.Trainer, name, lambda self, name=name: asked.append(name), raising=False)
    monkeypatch.setattr(test_run_restart.Trainer, "versions", lambda self: ("1", "2"), raising=False)
    resumes_after(run, monkeypatch, 3)
    monkeypatch.setattr(run.args, "num_rollout", 4)
    run.repeat(loop)
    assert asked == [
        "take_snapshot", "4 passes", "keep_steps", "take_snapshot", "3 passes", "undo_steps",
        "take_snapshot", "2 passes", "keep_steps", "1 passes",
    ]  # fmt: skip


def test_passes_need_a_state_that_can_be_copied(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(world, monkeypatch)
    run.args.optimizer_cpu_offload = True
    with pytest.raises(ConfigError, match="--fuses cannot undo the first of 4 passes with --optimizer-cpu-offload"):
        run.updates._decisions.before_steps(4)


def test_without_the_flag_nothing_is_held_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(world, monkeypatch, fuses=None)
    run.repeat(loop)
    assert len([line for line in world.log if " live " in line]) == 5
    assert paused(run.args.run_dir) is None


def test_a_signal_ends_a_paused_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(world, monkeypatch)
    monkeypatch.setattr(run, "stop", Stops())
    with pytest.raises(Stopped):
        run.repeat(loop)
    assert paused(run.args.run_dir) is not None


class Stops:
    """Asks to stop once somebody waits for it."""

    def __bool__(self) -> bool:
        return False

    def wait(self, seconds: float) -> bool:
        return True


def test_a_rank_that_dies_during_the_pause_starts_again_and_stays_paused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(world, monkeypatch)
    looks: list[int] = []

    def recover() -> None:
        looks.append(1)
        if len(looks) == 1:
            raise RankLostError("training rank 1 died", "save")
        if len(looks) == 4:
            resume(run.args.run_dir)

    monkeypatch.setattr(run.engines, "recover", recover)
    run.repeat(loop)
    assert len(looks) >= 4
    after = world.log[world.log.index("trainer 1 killed") :]
    assert [line.split(" on ")[0] for line in after if " train " in line] == ["trainer 2 train 3", "trainer 2 train 4"]


@pytest.mark.parametrize(
    ("flags", "stays"),
    [
        ({"resume": True}, True),
        ({"resume": True, "resume_training": True}, False),
        ({"resume": False}, False),
    ],
)
def test_a_restart_stays_paused_until_the_flag_or_a_new_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: dict[str, Any], stays: bool
) -> None:
    for person in (None, "alice"):
        pause(tmp_path, 7, "train/ppo_kl>0.5 (it is 2)", person)
    fuses = Fuses(Arguments(**{"run_dir": str(tmp_path), "resume_training": False, "fuses": None, **flags}))
    fuses.at_start()
    assert (fuses.paused() is not None) is stays
    assert ("alice" in paused_people(tmp_path)) is stays
    said = capsys.readouterr().out
    assert all((f"training{whose} is paused since rollout 7" in said) is stays for whose in ("", " of alice"))


def test_a_fuse_without_its_metric_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fuses = Fuses(Arguments(run_dir=str(tmp_path), fuses=["train/ppo_kl>1", "rollout/reward<0"]))
    for _ in range(2):
        assert fuses.of_steps({STEPS: [{"train/loss": 1.0}]}, {"rollout/reward": 1.0}) is None
    told = capsys.readouterr().out
    assert told.count("--fuses looks at train/ppo_kl, which neither the batch nor the loss reports") == 1
    assert "rollout/reward" not in told


def entropies(*values: float) -> dict[str, Any]:
    return {STEPS: [{"train/entropy_loss": value} for value in values]}


def test_one_certain_batch_blows_nothing_and_eight_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A batch of tool calls has an entropy of 1e-5 in a healthy policy."""
    fuses = Fuses(Arguments(run_dir=str(tmp_path), fuses=[f"{RECENT_ENTROPY}<0.01"]))
    for value in (1e-5, *[0.1] * 6):
        assert fuses.of_steps(entropies(value), {}) is None
        assert fuses.recent() == {}
    assert "looks at" not in capsys.readouterr().out
    fuses.of_steps(entropies(0.1), {})
    assert fuses.recent() == {RECENT_ENTROPY: pytest.approx((1e-5 + 0.7) / 8)}
    assert fuses.of_batch(fuses.recent()) is None
    fuses.of_steps(entropies(*[1e-5] * 8), {})
    cause = fuses.of_batch(fuses.recent())
    assert str(cause) == f"{RECENT_ENTROPY}<0.01 (it is 1e-05)"
    assert cause is not None
    fuses.pause(9, str(cause))
    assert fuses.recent() == {}, "who lets it train again is given eight steps"


def test_the_run_pauses_when_the_policy_says_one_thing_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(world, monkeypatch, fuses=[f"{RECENT_ENTROPY}<0.01"])
    run.updates.fuses.of_steps(entropies(*[1e-5] * 7), {})
    monkeypatch.setattr(
        test_run_restart.Trainer, "train", lambda self, rollout_id, shards, critic_shards, passes: entropies(1e-5)
    )
    resumes_after(run, monkeypatch, 3)
    run.repeat(loop)
    refused = [line for line in world.log if line.startswith("refused ")]
    assert refused == [f"refused 1: {RECENT_ENTROPY}<0.01 (it is 1e-05)"]


def test_the_tracker_learns_of_the_pause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    args = Arguments(
        fuses=BOUND, run_dir=str(tmp_path), rollout_batch_size=8, n_samples_per_prompt=1, global_batch_size=8
    )
    run = Run(args)
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(logging_utils, "log", lambda args, metrics, step_key: told.append(metrics))
    cause = blown(BOUND, {"train/ppo_kl": 1.0})
    for refused in (None, cause):
        run.reports.update(Update(1, {}, {}, held=refused), 0.0, "1")
    assert [each[PAUSED] for each in told] == [0.0, 1.0]
