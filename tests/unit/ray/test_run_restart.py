"""A run that loses a process: what is started again, from where, with which batches, and when it gives up with one line."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, RayTaskError

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.placement import Placement
from slime.exceptions import LostError, ManagerLostError, NodeLostError, RankLostError, TrainerError
from slime.ray import run as execute_module
from slime.ray import run as run_module
from slime.ray.placement import ReservedPlacement
from slime.ray.processes import RemoteManager
from slime.ray.reports import Reports
from slime.ray.restarts import Restarts, death_line
from slime.ray.run import Phase, Run, Stopped, execute
from slime.utils import logging_utils

NOWHERE = ReservedPlacement(Placement((0,), (), ()), None, ())


class Remote:
    """A method of an actor; the reference is the value, or the error that asking for it raises."""

    def __init__(self, function: Any) -> None:
        self.remote = function


class World:
    """Managers and trainers that are made one after another, and what was asked of them."""

    def __init__(self, tmp_path: Path) -> None:
        self.log: list[str] = []
        self.save = tmp_path
        self.made = {"manager": 0, "trainer": 0}
        self.deaths: list[Any] = []
        self.manager_dead = False

    def manager(self, args: Arguments, reserved: ReservedPlacement) -> RemoteManager:
        self.made["manager"] += 1
        self.manager_dead = False
        name = f"manager {self.made['manager']}"

        def method(words: str, value: Any = None) -> Remote:
            def call(*arguments: Any) -> Any:
                if self.manager_dead:
                    return ActorDiedError()
                self.log.append(" ".join([name, words, *map(str, arguments)]))
                return value

            return Remote(call)

        def generate(rollout_id: int) -> Any:
            self.log.append(f"{name} generate {rollout_id}")
            return {"shards": [f"{name} batch {rollout_id}"], "critic_shards": [], "metrics": {}}

        actor = SimpleNamespace(
            addresses=method("addresses", {}),
            load=method("load"),
            before_rollouts=method("before_rollouts"),
            save=method("save"),
            hold_engines=method("hold_engines"),
            recover_engines=Remote(lambda: 0),
            engine_handles=Remote(lambda: []),
            weights_arrived=Remote(lambda: None),
            on_weights_live=method("live"),
            generate=Remote(generate),
        )
        return RemoteManager(actor)

    def trainer(self, args: Arguments, reserved: ReservedPlacement, stop: Any = None) -> Any:
        self.made["trainer"] += 1
        return Trainer(self, args, f"trainer {self.made['trainer']}")


class Trainer:
    """Dies when the world's next death names what it does."""

    def __init__(self, world: World, args: Arguments, name: str) -> None:
        self.world, self.args, self.name = world, args, name

    def _do(self, words: str) -> None:
        if self.world.deaths and self.world.deaths[0][0] == words:
            raise self.world.deaths.pop(0)[1]
        self.world.log.append(f"{self.name} {words}")

    def init(self) -> int:
        latest = self.world.save / "latest_checkpointed_iteration.txt"
        self._do("init")
        return int(latest.read_text()) if self.args.resume else 0

    def train(self, rollout_id: int, shards: list[Any], critic_shards: list[Any], passes: int = 1) -> dict[str, Any]:
        self._do(f"train {rollout_id}")
        self.world.log[-1] += f" on {shards[0]}"
        return {"train/loss": 0.0}

    def save(self, rollout_id: int) -> str:
        self._do(f"save {rollout_id}")
        return "folder"

    def publish(self, rollout_id: int) -> None:
        self._do(f"publish {rollout_id}")
        (self.world.save / "latest_checkpointed_iteration.txt").write_text(str(rollout_id + 1))
        self._do(f"published {rollout_id}")

    def connect_rollout_engines(self, engines: list[Any]) -> None:
        self._do("connect")

    def update_weights(self) -> str:
        self._do("push")
        return "1"

    def kill(self) -> None:
        self.world.log.append(f"{self.name} killed")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    world = World(tmp_path)

    def get(reference: Any) -> Any:
        if isinstance(reference, Exception):
            raise reference
        return reference

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "wait", lambda references, timeout: (references, []))
    monkeypatch.setattr(run_module, "create_rollout_manager", world.manager)
    monkeypatch.setattr(run_module, "Trainer", world.trainer)
    monkeypatch.setattr(Reports, "update", lambda *_: None)
    return world


def new_run(
    world: World, *, save: bool = True, allowed: int = 2, interval: int = 2, rollouts: int = 4, **values: Any
) -> Run:
    """A run of which nothing has started."""
    args = Arguments(
        **{"save": str(world.save) if save else None, "save_interval": interval, "num_rollout": rollouts},
        **{"update_weights_interval": 1, "debug_train_only": False, "max_trainer_restarts": allowed},
        **({"resume": False, "load": None, "run_dir": str(world.save)} | values),
    )
    return Run(args)


def make_run(world: World, **values: Any) -> Run:
    """A run as it is after its start."""
    run = new_run(world, **values)
    args = run.args
    run.life.phase = Phase.UP
    run.processes.reserved = NOWHERE
    run.processes.manager = world.manager(args, NOWHERE)
    run.processes.loaded = True
    run.processes.trainer = world.trainer(args, NOWHERE)
    run.restarts.allow(args.save, args.max_trainer_restarts)
    run.engines.version = "0"
    return run


def loop(run: Run) -> None:
    """What ``train.py`` does."""
    for rollout_id in range(run.start_rollout_id, run.args.num_rollout):
        run.train(rollout_id, run.wait(run.generate(rollout_id)))
        run.save_if_due(rollout_id)


def steps(world: World) -> list[str]:
    return [line for line in world.log if " train " in line]


def test_a_lost_rank_goes_back_to_the_checkpoint_and_trains_on_the_same_batches(world: World) -> None:
    world.deaths = [("train 3", RankLostError("training rank 1 died in train: killed.\nmore", "train"))]
    make_run(world).repeat(loop)
    assert [line for line in world.log if "generate" in line] == [f"manager 1 generate {number}" for number in range(4)]
    assert steps(world) == [
        *(f"trainer 1 train {number} on manager 1 batch {number}" for number in range(3)),
        *(f"trainer 2 train {number} on manager 1 batch {number}" for number in (2, 3)),
    ]
    after = world.log[world.log.index("trainer 1 killed") :]
    assert after[:6] == [
        "trainer 1 killed",
        "manager 1 addresses",
        "trainer 2 init",
        "trainer 2 connect",
        "trainer 2 push",
        "manager 1 before_rollouts",
    ]
    assert world.made == {"manager": 1, "trainer": 2}


def test_before_the_first_checkpoint_it_starts_from_the_start_weights(world: World) -> None:
    world.deaths = [("train 1", RankLostError("a rank died", "train"))]
    make_run(world).repeat(loop)
    assert steps(world)[:3] == [
        "trainer 1 train 0 on manager 1 batch 0",
        "trainer 2 train 0 on manager 1 batch 0",
        "trainer 2 train 1 on manager 1 batch 1",
    ]


def test_engines_hold_their_requests_when_the_push_broke_off(world: World) -> None:
    world.deaths = [("push", RankLostError("a rank died", "update_weights"))]
    make_run(world).repeat(loop)
    assert "manager 1 hold_engines False" in world.log
    world.log.clear()
    world.deaths = [("push", RankLostError("a rank died", "push_candidate"))]
    make_run(world).repeat(loop)
    assert any(line.endswith("hold_engines True") for line in world.log), (
        "only the last engine may hold a part of the candidate"
    )
    world.log.clear()
    world.deaths = [("train 3", RankLostError("a rank died", "train"))]
    make_run(world).repeat(loop)
    assert not any("hold_engines" in line for line in world.log)


def test_a_lost_manager_takes_its_batches_and_the_data_source_goes_back(world: World) -> None:
    run = make_run(world)

    def dies_once(run: Run) -> None:
        for rollout_id in range(run.start_rollout_id, run.args.num_rollout):
            batch = run.wait(run.generate(rollout_id))
            if rollout_id == 3 and world.made["manager"] == 1:
                world.manager_dead = True
            run.train(rollout_id, batch)
            run.save_if_due(rollout_id)

    run.repeat(dies_once)
    assert "manager 2 load 1" in world.log
    assert steps(world)[-3:] == [
        "trainer 1 train 3 on manager 1 batch 3",
        "trainer 2 train 2 on manager 2 batch 2",
        "trainer 2 train 3 on manager 2 batch 3",
    ]


def test_death_of_the_manager_is_told_from_an_error_inside_it(world: World) -> None:
    run = make_run(world)
    world.manager_dead = True
    with pytest.raises(ManagerLostError, match="the rollout manager died"):
        run.processes.value(run.processes.manager.addresses())


def test_an_actor_that_raises_while_it_is_made_is_told_with_its_error() -> None:
    inner = ConfigError("--prompt-data x.jsonl: no such file")
    told = "Traceback (most recent call last)\n  File\ngroundwork.exceptions.ConfigError: --prompt-data x.jsonl: no such file"
    error = ActorDiedError(RayTaskError("RolloutManager.__init__", told, inner))
    assert death_line("the manager died", error) == (
        "the manager died at its start: groundwork.exceptions.ConfigError: --prompt-data x.jsonl: no such file"
    )
    assert death_line("the manager died", ActorDiedError()).startswith("the manager died: The actor died unexpectedly")


def test_a_signal_during_a_loss_ends_the_run_without_a_restart(world: World) -> None:
    run = make_run(world)

    def stopped(run: Run) -> None:
        run.train(0, run.wait(run.generate(0)))
        run.stop._handle(15, None)
        raise RankLostError("a rank died", "train")

    with pytest.raises(Stopped):
        run.repeat(stopped)
    assert world.made["trainer"] == 1
    assert not run.updates.unsaved


def start(world: World, monkeypatch: pytest.MonkeyPatch, **values: Any) -> Run:
    """A run that goes through its start."""
    run = new_run(world, rollout_external_engine_addrs=["10.0.0.1:30000"], **values)
    monkeypatch.setattr(run_module, "missing_at_start", lambda args: [])
    monkeypatch.setattr(run_module, "describe_placement", lambda args: NOWHERE.placement)
    monkeypatch.setattr(run_module, "create_placement", lambda args, stop: NOWHERE)
    monkeypatch.setattr(run_module, "ray_cluster", lambda args, **_: contextlib.nullcontext())
    monkeypatch.setattr(run_module, "backend_line", lambda args: "")
    monkeypatch.setattr(logging_utils, "init_tracking", lambda args: None)
    monkeypatch.setattr(run.stop, "install", lambda: run.stop)
    monkeypatch.setattr(
        run_module.StartWatch, "start", lambda watch: None
    )  # nothing here ends the run, and so its thread
    run._start()
    return run


def test_a_rank_that_dies_in_the_first_push_is_started_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.deaths = [("push", RankLostError("a rank died", "update_weights"))]
    start(world, monkeypatch).repeat(loop)
    assert world.made == {"manager": 1, "trainer": 2}
    assert "manager 1 hold_engines False" in world.log
    assert [line.split(" on ")[0] for line in steps(world)] == [f"trainer 2 train {number}" for number in range(4)]


def test_rollouts_begin_after_the_first_push(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start(world, monkeypatch)
    assert world.log[-2:] == ["trainer 1 push", "manager 1 before_rollouts"]
    run.repeat(loop)
    assert world.log.count("manager 1 before_rollouts") == 1


@pytest.mark.parametrize(
    ("collects", "done", "changes", "told"),
    [
        (False, 0, {}, False),
        (True, 0, {"load_debug_rollout_data": "dump"}, False),
        (True, 4, {}, False),
        (True, 4, {"serve_when_done": True}, True),
        (True, 3, {}, True),
    ],
)
def test_the_data_source_starts_nothing_for_a_run_without_rollouts(
    world: World, monkeypatch: pytest.MonkeyPatch, collects: bool, done: int, changes: dict[str, Any], told: bool
) -> None:
    (world.save / "latest_checkpointed_iteration.txt").write_text(str(done))
    values = {"num_rollout": 4, "resume": True, "load": None, "rollout_num_gpus": 1, **changes}
    run = Run(Arguments(**values), collects=collects)
    run.processes.reserved = NOWHERE
    run._bring_up(run.args)
    assert ("manager 1 before_rollouts" in world.log) == told


def test_a_data_source_that_cannot_start_ends_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = world.manager

    def refusing(args: Arguments, reserved: ReservedPlacement) -> Any:
        made = manager(args, reserved)
        made._actor.before_rollouts = Remote(lambda: RuntimeError("the runtime process ended 6 times"))
        return made

    monkeypatch.setattr(world, "manager", refusing)
    monkeypatch.setattr(run_module, "create_rollout_manager", refusing)
    with pytest.raises(RuntimeError, match="ended 6 times"):
        start(world, monkeypatch)
    assert steps(world) == []


def test_a_rank_that_dies_in_the_first_push_ends_a_run_without_restarts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deaths = [("push", RankLostError("a rank died", "update_weights"))]
    with pytest.raises(TrainerError, match="restarts are off"):
        start(world, monkeypatch, allowed=0).repeat(loop)
    assert steps(world) == []


def test_a_manager_that_dies_while_a_checkpoint_is_written_leaves_the_one_before(world: World) -> None:
    run = make_run(world)
    save = Trainer.save

    def dies_meanwhile(trainer: Trainer, rollout_id: int) -> str:
        world.manager_dead = rollout_id == 3 and world.made["manager"] == 1
        return save(trainer, rollout_id)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "save", dies_meanwhile)
        run.repeat(loop)
    assert [line for line in world.log if "publish" in line] == [
        *("trainer 1 publish 1", "trainer 1 published 1"),
        *("trainer 2 publish 3", "trainer 2 published 3"),
    ]
    assert "manager 2 load 1" in world.log
    assert [line for line in steps(world) if "trainer 2" in line] == [
        f"trainer 2 train {number} on manager 2 batch {number}" for number in (2, 3)
    ]


def test_a_checkpoint_is_published_once_all_its_parts_are_there(world: World) -> None:
    make_run(world).repeat(loop)
    parts = [line for line in world.log if " save " in line or " publish " in line]
    assert parts[:3] == ["trainer 1 save 1", "manager 1 save 1", "trainer 1 publish 1"]


@pytest.mark.parametrize(("dies", "first"), [("publish 3", 2), ("published 3", 4)])
def test_a_rank_that_dies_around_the_publication_goes_on_from_what_is_published(
    world: World, dies: str, first: int
) -> None:
    world.deaths = [(dies, RankLostError("a rank died", "publish"))]
    run = make_run(world)
    run.repeat(loop)
    assert [line for line in steps(world) if "trainer 2" in line] == [
        f"trainer 2 train {number} on manager 1 batch {number}" for number in range(first, 4)
    ]
    assert run.updates.progress.saved == 3


def test_a_rank_that_dies_while_the_run_starts_is_started_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.deaths = [("init", RankLostError("a rank died", "init"))]
    start(world, monkeypatch).repeat(loop)
    assert world.made == {"manager": 1, "trainer": 2}
    assert [line for line in world.log if " load " in line] == ["manager 1 load -1"]
    assert [line.split(" on ")[0] for line in steps(world)] == [f"trainer 2 train {number}" for number in range(4)]


def test_a_manager_that_dies_while_the_run_starts_is_started_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world.manager

    def dies_first(args: Arguments, reserved: ReservedPlacement) -> RemoteManager:
        manager = made(args, reserved)
        world.manager_dead = world.made["manager"] == 1
        return manager

    monkeypatch.setattr(run_module, "create_rollout_manager", dies_first)
    start(world, monkeypatch).repeat(loop)
    assert world.made == {"manager": 2, "trainer": 2}
    assert "manager 2 load -1" in world.log


def test_a_manager_that_raises_while_it_is_made_is_not_made_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = ConfigError("--prompt-data x.jsonl: no such file")
    error = ActorDiedError(RayTaskError("RolloutManager.__init__", f"x.ConfigError: {inner}", inner))

    def raises(args: Arguments, reserved: ReservedPlacement) -> RemoteManager:
        world.made["manager"] += 1
        return RemoteManager(SimpleNamespace(addresses=Remote(lambda: error)))

    monkeypatch.setattr(run_module, "create_rollout_manager", raises)
    with pytest.raises(ManagerLostError, match=r"died at its start: .*no such file"):
        start(world, monkeypatch)
    assert world.made["manager"] == 1


def test_after_the_loss_of_a_machine_all_start_again_on_another(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = ReservedPlacement(NOWHERE.placement, None, (), home="elsewhere")
    asked: list[Any] = []

    def replaced(reserved: ReservedPlacement, lost: str, seconds: float, stop: Any) -> ReservedPlacement:
        asked.append((lost, seconds))
        return elsewhere

    monkeypatch.setattr(run_module, "with_replacements", replaced)
    monkeypatch.setattr(ray, "kill", lambda manager: asked.append("killed"))
    world.deaths = [("train 3", NodeLostError("node 10.0.0.2 left the cluster"))]
    run = make_run(world)
    run.args.node_timeout = 5.0
    run.repeat(loop)
    assert asked == ["killed", ("node 10.0.0.2 left the cluster", 5.0)]
    assert run.processes.reserved is elsewhere
    assert world.made == {"manager": 2, "trainer": 2}
    assert "manager 2 load 1" in world.log
    assert steps(world)[-2:] == [f"trainer 2 train {number} on manager 2 batch {number}" for number in (2, 3)]


def test_restarts_are_bounded_between_checkpoints(world: World) -> None:
    world.deaths = [("train 3", RankLostError("a rank died.", "train"))] * 3
    with pytest.raises(TrainerError, match=r"a rank died\. The run ends after 2 restarts .*--resume") as caught:
        make_run(world).repeat(loop)
    assert not isinstance(caught.value, LostError)
    # a checkpoint between them starts the count again
    world.deaths = [(f"train {number}", RankLostError("a rank died.", "train")) for number in (1, 2, 4, 5)]
    make_run(world, interval=1, rollouts=6, allowed=1).repeat(loop)
    assert not world.deaths


def test_a_trainer_that_dies_while_it_starts_again_counts(world: World) -> None:
    dies = RankLostError("a rank died in init.", "init")
    world.deaths = [("train 0", dies), ("init", dies), ("init", dies)]
    with pytest.raises(TrainerError, match="after 2 restarts"):
        make_run(world).repeat(loop)


@pytest.mark.parametrize(
    ("save", "allowed", "words"),
    [
        (False, 3, "no checkpoint to continue from: add --save FOLDER"),
        (True, 0, "restarts are off (--max-trainer-restarts 0)"),
    ],
)
def test_without_checkpoints_or_restarts_one_line_ends_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: Any, save: bool, allowed: int, words: str
) -> None:
    run = make_run(world, save=save, allowed=allowed)
    world.deaths = [("train 1", RankLostError("training rank 0 died in train: killed\nmore", "train"))]
    monkeypatch.setattr(execute_module, "Run", lambda args, collects: run)
    monkeypatch.setattr(Run, "_start", lambda self: None)
    assert execute(run.args, loop) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("the run failed: training rank 0 died in train: killed. ")
    assert words in last
    assert world.made["trainer"] == 1


def test_a_run_that_trains_nothing_is_not_told_to_save() -> None:
    with pytest.raises(TrainerError, match=r"^the manager died\. Nothing was trained yet: start the run again$"):
        Restarts().spend(ManagerLostError("the manager died"))


def test_the_loss_is_logged_with_its_traceback(world: World, caplog: pytest.LogCaptureFixture, capsys: Any) -> None:
    world.deaths = [("train 1", RankLostError("a rank died", "train"))]
    with caplog.at_level(logging.ERROR):
        make_run(world).repeat(loop)
    assert any(record.exc_info for record in caplog.records)
    assert "a rank died. Continuing from the last checkpoint, restart 1 of 2" in capsys.readouterr().out


def test_batches_are_kept_until_they_are_in_a_checkpoint(tmp_path: Path) -> None:
    kept, off = Restarts(), Restarts()
    kept.allow(str(tmp_path), 1)
    off.allow(None, 3)
    made = iter(range(100))
    assert [kept.batch(number, lambda: next(made)) for number in (0, 1, 1, 0)] == [0, 1, 1, 0]
    kept.saved(0)
    assert [kept.batch(number, lambda: next(made)) for number in (1, 0)] == [1, 2]
    assert [off.batch(0, lambda: next(made)) for _ in range(2)] == [3, 4]
