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
from slime.observability.metric_utils import STEPS
from slime.ray import run as run_module
from slime.ray.processes import RemoteManager
from slime.ray.reports import Reports
from slime.ray.run import Run
from slime.rollout.before_push import Answer, Decision, DecisionEndedError, Policies, Probe, Trained
from slime.rollout.foreign_data_source import with_optional_methods
from slime.updates import decisions, updates
from slime.updates.decisions import PluginThread
from slime.updates.update import State, Update
from tests.unit.ray import test_run_restart
from tests.unit.ray.test_run_restart import Remote, World, loop, world

__all__ = ["world"]  # a fixture

REFUSED, MANY = 1, 50
PROBES = [Probe([1, 2], [3]), Probe([4], (), 2)]
EVENTS: list[str] = []
TRAINED: list[Trained] = []
ACTIONS: dict[str, Callable[[], Any]] = {}


def decide(args: Any, rollout_id: int, data_source: Any, policies: Policies) -> Any:
    """The plugin: asks both versions, and refuses rollout `REFUSED`."""
    ACTIONS.get("decide", lambda: None)()
    TRAINED.append(policies.candidate.trained)
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


def gated(manager: RemoteManager, log: list[str], pool: ThreadPoolExecutor) -> RemoteManager:
    """Add what the gate calls to a manager of the world; the data source's methods run in threads, as those of an actor do."""
    source = with_optional_methods(Source(log))
    actor = manager._actor
    actor.engine_arguments = Remote(lambda: {"sglang_router_ip": "10.0.0.1", "sglang_router_port": 30000})
    actor.on_gate_decided = Remote(lambda *words: pool.submit(source.gate_decided, *words))
    actor.on_step_undone = Remote(lambda *words: pool.submit(source.step_undone, *words))
    actor.call_data_source = Remote(lambda name, words, keywords: ("called", name, words, keywords))
    actor.options_read = Remote(lambda: frozenset({"gamma"}))
    actor.data_source_attribute = Remote(lambda name: (name != "epoch_id", 7))
    return manager


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

    def options_read(self) -> frozenset[str]:
        return frozenset({"lr"})

    def versions(self) -> tuple[str, str]:
        return str(self.served), str(self.served + (self.weights != self.served))

    def train(self, rollout_id: int, shards: list[Any], critic_shards: list[Any], passes: int = 1) -> dict[str, Any]:
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
    EVENTS.clear(), TRAINED.clear()
    ACTIONS.clear()
    monkeypatch.setattr(run_module, "Trainer", lambda args, *_: make_trainer(world, args))
    monkeypatch.setattr(ray, "wait", wait_for)
    monkeypatch.setattr(ray, "get", lambda it: it.result() if isinstance(it, Future) else value_of(it))
    run = test_run_restart.make_run(world, interval=100, before_push_path=f"{__name__}.decide")
    run.processes.trainer = make_trainer(world, run.args)
    with ThreadPoolExecutor(8, "manager") as pool:
        make_manager = world.manager
        monkeypatch.setattr(
            run_module, "create_rollout_manager", lambda *words: gated(make_manager(*words), world.log, pool)
        )
        gated(run.processes.manager, world.log, pool)
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
    run: Run, world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alerts: list[tuple[str, str]] = []
    monkeypatch.setattr(decisions, "tell", lambda *words: alerts.append(words))
    steps: list[tuple[int, str]] = []
    monkeypatch.setattr(
        updates, "record_span", lambda name, *times, **said: steps.append((said["step"], said["state"]))
    )
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
    assert steps == [(0, "accepted"), (1, "undone"), (2, "accepted"), (3, "accepted")]
    assert alerts == [("refused", "the gate refused the update of step 1; the weights of before serve")], (
        "without the reason"
    )


def test_the_plugin_learns_which_flags_nobody_has_read(run: Run) -> None:
    run.updates._decisions._unread = {"lr", "gamma", "adam_eps", "planted_by_a_test"}
    run.repeat(loop)
    assert TRAINED[0].unread == TRAINED[-1].unread == ("--adam-eps", "--planted-by-a-test")
    assert {trained.unused for trained in TRAINED} == {()}, "a plugin of the tests may read anything"


def test_a_step_that_was_skipped_is_asked_about_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Trainer.train
    ACTIONS["no step"] = lambda: None
    skipped = [{"train/skipped_steps": 1.0}]
    monkeypatch.setattr(Trainer, "train", lambda *words: {**plain(*words), STEPS: skipped})
    run.repeat(loop)
    assert EVENTS[0] == "0: 0.0, 0: 0.0"
    assert list(TRAINED[0].steps) == skipped


def test_a_refused_step_whose_process_dies_behind_its_checkpoint_never_counts_as_live(
    run: Run, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data source would take its samples for trained ones."""
    alerts: list[tuple[str, str]] = []
    monkeypatch.setattr(run_module, "tell", lambda *words: alerts.append(words))
    world.deaths = [("published 1", RankLostError("training rank 0 died", "publish"))]
    run.repeat(loop)
    assert "trainer 2 train 2 on manager 1 batch 2" in world.log
    assert [line.split()[3] for line in world.log if " live " in line] == ["0", "2", "3"]
    line = "a process of the run is gone (RankLostError); it restarts from its newest checkpoint"
    assert alerts == [("engine", line)]


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
    run.restarts.not_trained(Update(REFUSED, {}, {}, undone="worse", state=State.UNDONE))
    run.restarts.batches_lost()
    run.repeat(loop)
    assert "undone 1: worse" in world.log


def test_a_signal_waits_until_the_data_source_knows_that_the_steps_are_undone(run: Run, world: World) -> None:
    """The checkpoint that follows would count the samples as trained."""

    def signal_meanwhile() -> None:
        run.stop._event.set()
        threading.Event().wait(0.1)

    ACTIONS["undone"] = signal_meanwhile
    ACTIONS["look"] = lambda: None
    run.step(REFUSED, {"shards": ["batch 1"], "critic_shards": [], "metrics": {}})
    assert world.log.index("undone 1: worse") < world.log.index("trainer 1 save 1")


def test_the_trackers_learn_the_decision_and_its_seconds(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[dict[str, Any]] = []
    monkeypatch.setattr(Reports, "update", lambda self, update, *_: reported.append(update.metrics))
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


def test_an_engine_that_restarts_meanwhile_gets_what_serves(
    run: Run, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver looks after engines while the plugin thinks."""
    looked = threading.Event()
    ACTIONS["decide"] = lambda: looked.wait(5.0)
    monkeypatch.setattr(decisions, "POLL_SECONDS", 0.001)

    def look_after() -> None:
        if not looked.is_set():
            run.engines.push(connect=True)
            looked.set()

    monkeypatch.setattr(run.engines, "look_after", look_after)
    run.train(0, {"shards": ["batch 0"], "critic_shards": [], "metrics": {}})
    pushes = [line for line in world.log if "push" in line]
    assert pushes == ["trainer 1 push what serves, 0", "trainer 1 push 1"]


def test_a_rank_that_dies_during_a_probe_ends_the_plugin_and_the_batch_is_trained_again(run: Run, world: World) -> None:
    world.deaths = [("ask", RankLostError("training rank 0 died", "ask"))]
    run.repeat(loop)
    trained = [line.split(" on ")[0] for line in world.log if " train " in line]
    assert trained[:3] == ["trainer 1 train 0", "trainer 2 train 0", "trainer 2 train 1"]
    assert [line for line in told(world) if "decided" in line][:2] == ["decided 0 True fine", "decided 1 False worse"]


def test_a_run_that_stops_during_a_probe_saves_nothing_undecided(
    run: Run, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = threading.Event()

    def look_after() -> None:
        stopped.set()
        raise Stopped

    monkeypatch.setattr(run.engines, "look_after", look_after)
    monkeypatch.setattr(decisions, "POLL_SECONDS", 0.001)
    ACTIONS["decide"] = lambda: stopped.wait(5.0)
    batch: Any = {"shards": ["batch 0"], "critic_shards": [], "metrics": {}}
    with pytest.raises(Stopped):
        run.step(0, batch)
    assert "trainer 1 undo" in world.log
    assert run.updates.progress.trained is None, "leaving the run saves what the progress names"
    assert not [line for line in world.log if "decided" in line]


def test_a_signal_is_heard_between_questions_that_follow_at_once(
    run: Run, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin with many questions lets the driver wait for none of them."""
    monkeypatch.setattr(decisions, "POLL_SECONDS", 0.0)
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


def test_a_question_that_a_signal_overtakes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the thread that asked it would wait for ever."""
    monkeypatch.setattr(decisions, "POLL_SECONDS", 0.0)
    signal, refused = threading.Event(), threading.Event()

    def look_after() -> None:
        if signal.is_set():
            raise Stopped

    thread = PluginThread(look_after)

    def ask() -> None:
        try:
            thread.call(lambda: None)
        except DecisionEndedError:
            refused.set()

    def answer() -> None:
        threading.Thread(target=ask, daemon=True).start()
        while thread._asked.empty():
            threading.Event().wait(0.001)
        signal.set()

    with pytest.raises(Stopped):
        thread.run(lambda: thread.call(answer))
    assert refused.wait(5.0)


def test_a_signal_that_the_plugin_meets_first_stops_the_run(run: Run, world: World) -> None:
    """A call of the data source raises it in the plugin's thread."""

    def meet() -> None:
        run.stop._event.set()
        raise Stopped

    ACTIONS["decide"] = meet
    with pytest.raises(Stopped):
        run.step(0, {"shards": ["batch 0"], "critic_shards": [], "metrics": {}})
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


def test_an_error_of_another_kind_names_the_plugin(run: Run) -> None:
    def broken() -> None:
        raise KeyError("margin")

    ACTIONS["decide"] = broken
    with pytest.raises(PluginError, match="before-push-path plugin failed: KeyError: 'margin'"):
        run.repeat(loop)


def test_the_plugin_reaches_the_data_source_and_the_engines_addresses(run: Run) -> None:
    heard: list[Any] = []

    def decide(args: Any, rollout_id: int, data_source: Any, policies: Policies) -> Decision:
        heard.extend([args.sglang_router_ip, data_source.count(2, of="x"), data_source.epoch_id])
        assert threading.current_thread() is not threading.main_thread()
        return Decision(True, "fine")

    ACTIONS["plugin"] = decide
    run.args.before_push_path = f"{__name__}.calls_the_plugin_of_the_test"
    run.train(0, {"shards": ["batch 0"], "critic_shards": [], "metrics": {}})
    assert heard == ["10.0.0.1", ("called", "count", (2,), {"of": "x"}), 7]
    assert run.args.sglang_router_ip is None


def calls_the_plugin_of_the_test(*words: Any) -> Decision:
    plugin: Any = ACTIONS["plugin"]
    return plugin(*words)


def test_a_plugin_that_nobody_waits_for_any_more_ends_with_its_next_question(
    run: Run, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, stopped, ended = threading.Event(), threading.Event(), list[Exception]()

    def decide(args: Any, rollout_id: int, data_source: Any, policies: Policies) -> Decision:
        stopped.wait(5.0)
        try:
            policies.candidate.ask(PROBES)
        except DecisionEndedError as error:
            ended.append(error)
        asked.set()
        return Decision(True, "too late")

    def look_after() -> None:
        raise Stopped

    ACTIONS["plugin"] = decide
    run.args.before_push_path = f"{__name__}.calls_the_plugin_of_the_test"
    monkeypatch.setattr(run.engines, "look_after", look_after)
    monkeypatch.setattr(decisions, "POLL_SECONDS", 0.001)
    with pytest.raises(Stopped):
        run.step(0, {"shards": ["batch 0"], "critic_shards": [], "metrics": {}})
    stopped.set()
    assert asked.wait(5.0)
    assert ended
    assert "trainer 1 ask" not in world.log


def test_without_the_flag_nothing_is_asked(run: Run, world: World) -> None:
    run.args.before_push_path = None
    trainer: Any = run.processes.trainer
    trainer.open = True  # as `train` of this stand-in demands
    update = run.step(0, {"shards": ["batch 0"], "critic_shards": [], "metrics": {}})
    assert update.state is State.ACCEPTED
    assert not EVENTS
    assert "kept" not in world.log
