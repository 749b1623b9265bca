"""The gate before a push: what the driver does with an accepted and a refused step, and when a process dies meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import pytest
import ray

from groundwork.process import Stopped
from slime.exceptions import PluginError, RankLostError
from slime.ray import gate as gate_module
from slime.ray import run_start
from slime.ray.decisions import Decisions
from slime.ray.gate import Gate
from slime.ray.report import Step, Trained
from slime.ray.run import Run
from slime.rollout.before_push import Answer, Decision, Policies, Probe
from slime.rollout.foreign_data_source import with_optional_methods
from tests.unit.ray import test_run_restart
from tests.unit.ray.test_run_restart import Remote, World, loop, world

__all__ = ["world"]  # a fixture

REFUSED, MANY = 1, 50
PROBES = [Probe([1, 2], [3]), Probe([4], (), 2)]
EVENTS: list[str] = []
ACTIONS: dict[str, Callable[[], Any]] = {}


def decide(args: Any, rollout_id: int, data_source: Any, policies: Policies) -> Any:
    """The plugin: asks both versions, and refuses rollout `REFUSED`."""
    ACTIONS.get("decide", lambda: None)()
    margins = [policy.ask(PROBES)[0].log_probs[0] for policy in policies]
    EVENTS.append(f"{policies.serving.version}: {margins[0]}, {policies.candidate.version}: {margins[1]}")
    accepted = rollout_id != REFUSED
    return Decision(accepted, "fine" if accepted else "worse", {"gate/margin": margins[1] - margins[0]})


def asks_on_and_on(args: Any, rollout_id: int, data_source: Any, policies: Policies) -> Any:
    for _ in range(MANY):
        policies.candidate.ask(PROBES)
    return Decision(True, "fine")


def no_decision(*_: Any) -> bool:
    return True


class Source:
    """A foreign data source that writes down what it learns."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def gate_decided(self, rollout_id: int, decision: Decision) -> None:
        self.log.append(f"decided {rollout_id} {decision.accepted} {decision.why}")

    def step_undone(self, rollout_id: int, why: str) -> None:
        ACTIONS.get("undone", lambda: None)()
        self.log.append(f"undone {rollout_id}: {why}")


class Manager(Decisions):
    """The manager's part, in this process; its methods run in threads, as those of the actor do."""

    def __init__(self, args: Any, log: list[str], pool: ThreadPoolExecutor, rest: Any) -> None:
        self.args, self._data_source = args, Source(log)
        self._source_hooks = with_optional_methods(self._data_source)
        self._pool, self._rest = pool, rest

    def __getattribute__(self, name: str) -> Any:
        if name in {*vars(Decisions)} and not name.startswith("_"):
            method = super().__getattribute__(name)
            calls_itself = threading.current_thread().name.startswith("manager")
            return method if calls_itself else Remote(lambda *words: self._pool.submit(method, *words))
        try:
            return super().__getattribute__(name)
        except AttributeError:
            return getattr(self._rest, name)


class Trainer(test_run_restart.Trainer):
    """Its weights are a number: the version that serves, and half a step more after training."""

    served, weights, open = 0, 0.0, False

    def take_snapshot(self) -> None:
        self.open = True

    def keep_steps(self) -> None:
        self.world.log.append("kept")
        self.open = False

    def undo_steps(self) -> None:
        self._do("undo")
        self.open, self.weights = False, float(self.served)

    def versions(self) -> tuple[str, str]:
        return str(self.served), str(self.served + (self.weights != self.served))

    def train(self, rollout_id: int, shards: list[Any], critic_shards: list[Any]) -> dict[str, Any]:
        assert self.open, "the snapshot comes first"
        if "no step" not in ACTIONS:
            self.weights = self.served + 0.5
        return super().train(rollout_id, shards, critic_shards)

    def ask(self, served: bool, probes: list[Probe]) -> list[Answer]:
        self._do("ask")
        assert probes == [Probe([1, 2], [3], 0), Probe([4], [], 2)]
        return [Answer([float(self.served) if served else self.weights], [], False) for _ in probes]

    def update_weights(self) -> str:
        if self.open:
            self._do(f"push what serves, {self.served}")
            return str(self.served)
        if self.weights != self.served:
            self.served += 1
            self.weights = float(self.served)
        self._do(f"push {self.served}")
        return str(self.served)


@pytest.fixture
def run(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """A run with the plugin above and four rollouts."""
    EVENTS.clear()
    ACTIONS.clear()
    monkeypatch.setattr(run_start, "Trainer", lambda args, *_: make_trainer(world, args))
    monkeypatch.setattr(ray, "wait", wait_for)
    monkeypatch.setattr(ray, "get", lambda it: it.result() if isinstance(it, Future) else value_of(it))
    run = test_run_restart.make_run(world, interval=100)
    run.args.before_push_path = f"{__name__}.decide"
    run._gate = Gate(run.args, run._processes, run._look_after, run._value)
    run._processes.trainer = make_trainer(world, run.args)
    with ThreadPoolExecutor(8, "manager") as pool:
        run._processes.manager = Manager(run.args, world.log, pool, run._processes.manager)
        yield run


def make_trainer(world: World, args: Any) -> Any:
    world.made["trainer"] += 1
    return Trainer(world, args, f"trainer {world.made['trainer'] - 1}")


def value_of(reference: Any) -> Any:
    if isinstance(reference, Exception):
        raise reference
    return reference


def wait_for(references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
    """`ray.wait` for values, and for futures that never take long."""
    futures = [each for each in references if isinstance(each, Future)]
    if len(futures) == len(references):
        wait(futures, timeout=5.0 if "look" not in ACTIONS else 0.01, return_when=FIRST_COMPLETED)
    done = [each for each in references if each not in futures or each.done()]
    return done, [each for each in references if each not in done]


def told(world: World) -> list[str]:
    words = ("decided", "undone", " live ", "undo", "push", "kept", " save ")
    return [line for line in world.log if any(word in line for word in words)]


def test_a_refused_step_is_undone_and_the_next_one_trains(
    run: Run, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    run.repeat(loop)
    assert EVENTS == ["0: 0.0, 1: 0.5", "1: 1.0, 2: 1.5", "1: 1.0, 2: 1.5", "2: 2.0, 3: 2.5"]
    assert told(world) == [
        "decided 0 True fine", "kept", "trainer 1 push 1", "manager 1 live 0 1",
        "decided 1 False worse", "trainer 1 undo", "undone 1: worse", "trainer 1 save 1", "manager 1 save 1",
        "decided 2 True fine", "kept", "trainer 1 push 2", "manager 1 live 2 2",
        "decided 3 True fine", "kept", "trainer 1 push 3", "manager 1 live 3 3",
        "trainer 1 save 3", "manager 1 save 3",
    ]  # fmt: skip
    assert "step 1 is undone: worse; weights 1 keep serving, training goes on" in capsys.readouterr().out


def test_a_refused_step_whose_process_dies_behind_its_checkpoint_never_counts_as_live(run: Run, world: World) -> None:
    """The data source would take its samples for trained ones."""
    world.deaths = [("published 1", RankLostError("training rank 0 died", "publish"))]
    run.repeat(loop)
    assert "trainer 2 train 2 on manager 1 batch 2" in world.log
    assert [line.split()[3] for line in world.log if " live " in line] == ["0", "2", "3"]


@pytest.mark.parametrize("death", ["save 1", "publish 1"])
def test_a_refused_batch_that_the_data_source_has_back_is_not_trained_again(run: Run, world: World, death: str) -> None:
    """Somebody may have accepted the change meanwhile, so its samples may be in another batch."""
    world.deaths = [(death, RankLostError("training rank 0 died", death.split()[0]))]
    run.repeat(loop)
    trained = [line.split(" on ")[0] for line in world.log if " train " in line]
    assert trained == [
        "trainer 1 train 0", "trainer 1 train 1", "trainer 2 train 0", "trainer 2 train 2", "trainer 2 train 3",
    ]  # fmt: skip
    assert [line for line in world.log if "undone" in line] == ["undone 1: worse"]
    assert "trainer 2 save 1" in world.log
    assert world.log.index("trainer 2 published 1") < world.log.index("trainer 2 train 2 on manager 1 batch 2")


def test_a_lost_manager_takes_the_fate_of_refused_batches_along(run: Run, world: World) -> None:
    """The data source goes back and leases the samples anew, so the batch is trained and decided again."""
    run._restarts.not_trained(Trained(REFUSED, {}, Step({}, 0.0, 0.0, undone="worse")))
    run._restarts.batches_lost()
    run.repeat(loop)
    assert "undone 1: worse" in world.log


def test_a_signal_waits_until_the_data_source_knows_that_the_steps_are_undone(run: Run, world: World) -> None:
    """The checkpoint that follows would count the samples as trained."""

    def signal_meanwhile() -> None:
        run.stop._event.set()
        threading.Event().wait(0.1)

    ACTIONS["undone"] = signal_meanwhile
    ACTIONS["look"] = lambda: None
    run._gate._look_after = lambda: None
    run.step(REFUSED, {"shards": ["batch 1"], "critic_shards": [], "metrics": {}})
    assert world.log.index("undone 1: worse") < world.log.index("trainer 1 save 1")


def test_the_trackers_learn_the_decision_and_its_seconds(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[dict[str, Any]] = []
    monkeypatch.setattr(Run, "_report", lambda self, rollout_id, metrics, *_: reported.append(metrics))
    run.repeat(loop)
    assert [metrics["gate/accepted"] for metrics in reported] == [1.0, 0.0, 1.0, 1.0]
    assert [metrics["gate/margin"] for metrics in reported] == [0.5] * 4
    assert all({"perf/snapshot_time", "perf/probe_time"} <= set(metrics) for metrics in reported)
    assert [("perf/restore_time" in metrics) for metrics in reported] == [False, True, False, False]


def test_steps_that_change_nothing_are_not_asked_about(run: Run, world: World) -> None:
    ACTIONS["no step"] = lambda: None
    run.repeat(loop)
    assert not EVENTS
    assert world.log.count("kept") == 4


def test_an_engine_that_restarts_meanwhile_gets_what_serves(run: Run, world: World) -> None:
    """The driver looks after engines while the plugin thinks."""
    looked = threading.Event()
    ACTIONS["look"] = lambda: None
    ACTIONS["decide"] = lambda: looked.wait(5.0)
    original = run._gate._look_after

    def look_after() -> None:
        if not looked.is_set():
            run._send_weights(connect=True)
            looked.set()
        original()

    run._gate._look_after = look_after
    run.train(0, {"shards": ["batch 0"], "critic_shards": [], "metrics": {}})
    pushes = [line for line in world.log if "push" in line]
    assert pushes == ["trainer 1 push what serves, 0", "trainer 1 push 1"]


def test_a_rank_that_dies_during_a_probe_ends_the_plugin_and_the_batch_is_trained_again(run: Run, world: World) -> None:
    world.deaths = [("ask", RankLostError("training rank 0 died", "ask"))]
    run.repeat(loop)
    trained = [line.split(" on ")[0] for line in world.log if " train " in line]
    assert trained[:3] == ["trainer 1 train 0", "trainer 2 train 0", "trainer 2 train 1"]
    assert [line for line in told(world) if "decided" in line][:2] == ["decided 0 True fine", "decided 1 False worse"]


def test_a_run_that_stops_during_a_probe_saves_nothing_undecided(run: Run, world: World) -> None:
    stopped = threading.Event()

    def look_after() -> None:
        stopped.set()
        raise Stopped

    run._gate._look_after = look_after
    ACTIONS["look"] = lambda: None
    ACTIONS["decide"] = lambda: stopped.wait(5.0)
    batch: Any = {"shards": ["batch 0"], "critic_shards": [], "metrics": {}}
    with pytest.raises(Stopped):
        run.step(0, batch)
    assert "trainer 1 undo" in world.log
    assert run._progress.trained is None, "leaving the run saves what the progress names"
    assert not [line for line in world.log if "decided" in line]


def test_a_signal_is_heard_between_questions_that_follow_at_once(
    run: Run, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin with many questions lets the driver wait for none of them."""
    monkeypatch.setattr(gate_module, "POLL_SECONDS", 0.0)
    run.args.before_push_path = f"{__name__}.asks_on_and_on"
    original = Trainer.ask

    def ask(self: Trainer, served: bool, probes: list[Probe]) -> list[Answer]:
        run.stop._event.set()
        return original(self, served, probes)

    monkeypatch.setattr(Trainer, "ask", ask)
    with pytest.raises(Stopped):
        run.step(0, {"shards": ["batch 0"], "critic_shards": [], "metrics": {}})
    assert len([line for line in world.log if line == "trainer 1 ask"]) < MANY
    assert world.log[-1] == "trainer 1 undo"


@pytest.mark.parametrize("plugin", ["no_decision", "decide"])
def test_an_error_of_the_plugin_ends_the_run(run: Run, world: World, plugin: str) -> None:
    run.args.before_push_path = f"{__name__}.{plugin}"

    def broken() -> None:
        raise PluginError("no probes: record some first")

    ACTIONS["decide"] = broken
    with pytest.raises(PluginError, match=r"no probes|returned True; return a Decision"):
        run.repeat(loop)
    assert not [line for line in world.log if "push" in line]
    assert not [line for line in world.log if "decided" in line]


def test_without_the_flag_nothing_is_asked(run: Run, world: World) -> None:
    run.args.before_push_path = None
    gate = Gate(run.args, run._processes, run._look_after, run._value)
    gate.before_steps()
    assert not run._processes.trainer.open  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    metrics: dict[str, Any] = {}
    assert gate.after_steps(0, metrics, held=False) is None
    assert not metrics
