"""Trainer and engines on the same GPUs: who has them when, what an engine gives away and takes back, and what happens when one dies."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import train

from groundwork.paused import pause
from slime.args import Arguments
from slime.arguments.placement import EngineSpec, Placement
from slime.backends.sglang_utils.engine import CACHE, WEIGHTS, SGLangEngine
from slime.exceptions import DataUsedError, EngineError, RankLostError
from slime.ray import run as run_module
from slime.ray.engine_pool import EnginePool
from slime.ray.placement import ReservedPlacement
from slime.ray.processes import RemoteManager
from slime.ray.run import Phase, Run, Stopped
from slime.updates.rollback import ask_rollback, asked_rollback
from slime.utils import logging_utils
from slime.weight_sync.remote_engine import RemoteEngine

BOTH = {"colocate": True, "offload_train": True, "offload_rollout": True}
ROUND = """sleep_engines; onload; train {0}; save {0}; saved {0}; offload; wake_engines weights; push;
    wake_engines kv_cache,cuda_graph; live {0}"""


def phases(text: str) -> list[str]:
    return [phase.strip() for phase in text.split(";")]


class Recorder:
    """A rollout manager and a trainer that note what they are asked for, in one list."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.revived: list[int] = []
        self.deaths: dict[str, Exception] = {}
        self.latest: Callable[[], int] = lambda: 0

    def note(self, *words: Any) -> None:
        text = " ".join(",".join(word) if isinstance(word, tuple) else str(word) for word in words)
        self.log.append(text)
        if text in self.deaths:
            raise self.deaths.pop(text)

    def manager(self) -> RemoteManager:
        answers = {
            "addresses": lambda: {},
            "recover_engines": lambda: self.revived.pop(0) if self.revived else 0,
            "engine_handles": lambda: [],
            "weights_arrived": lambda: None,
            "hold_engines": lambda only_last: self.note("hold"),
            "load": lambda _: None,
            "before_rollouts": lambda: None,
            "on_weights_live": lambda rollout_id, version: self.note("live", rollout_id),
            "sleep_engines": lambda: self.note("sleep_engines"),
            "end_engines": lambda: self.note("end_engines"),
            "wake_engines": lambda parts: self.note("wake_engines", parts),
            "save": lambda rollout_id: self.note("saved", rollout_id),
            "generate": lambda rollout_id: self.batch(rollout_id),
            "eval": lambda rollout_id: self.note("eval", rollout_id) or {},
        }
        actor = SimpleNamespace(**{name: SimpleNamespace(remote=answer) for name, answer in answers.items()})
        return RemoteManager(actor)

    def batch(self, rollout_id: int) -> Any:
        self.note("generate", rollout_id)
        return {"shards": [], "critic_shards": [], "metrics": {}}

    def trainer(self, *_: Any) -> Any:
        def update() -> str:
            self.note("push")
            return "1"

        return SimpleNamespace(
            init=lambda: self.note("init") or self.latest(),
            train=lambda rollout_id, *_: self.note("train", rollout_id) or {},
            save=lambda rollout_id: self.note("save", rollout_id) or "folder",
            publish=lambda rollout_id: None,
            connect_rollout_engines=lambda _: self.note("connect"),
            update_weights=update,
            offload=lambda: self.note("offload"),
            onload=lambda: self.note("onload"),
            kill=lambda: self.note("kill"),
        )


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(ray, "get", lambda reference: reference)
    monkeypatch.setattr(ray, "wait", lambda references, timeout: (references, []))
    monkeypatch.setattr(run_module, "Trainer", made.trainer)
    monkeypatch.setattr(logging_utils, "log", lambda *_, **__: None)
    return made


def started(recorder: Recorder, **flags: Any) -> Run:
    """A run as it is when its trainer is there and the engines have yet to get its weights."""
    values = {"save": "folder", "save_interval": 1, "num_rollout": 2, "update_weights_interval": 1}
    values |= {"rollout_batch_size": 1, "num_steps_per_rollout": 1, "global_batch_size": 1}
    run = Run(Arguments(**(values | BOTH | flags)))
    run.life.phase = Phase.UP
    run.processes.reserved = ReservedPlacement(Placement((0,), (0,), ()), None, ())
    run.processes.manager, run.processes.loaded = recorder.manager(), True
    run.restarts.allow("folder", 2)
    run.engines.before_a_trainer()
    run.processes.trainer = recorder.trainer()
    run.engines.take_gpus(connect=True)
    return run


START = "sleep_engines; offload; wake_engines weights; connect; push; wake_engines kv_cache,cuda_graph"


def test_trainer_and_engines_take_turns(recorder: Recorder) -> None:
    train.train(started(recorder))
    rounds = [phase for number in (0, 1) for phase in (f"generate {number}", *phases(ROUND.format(number)))]
    assert recorder.log == [*phases(START), *rounds]


def test_evaluation_is_the_engines_turn(recorder: Recorder) -> None:
    train.train(started(recorder, eval_interval=1, num_rollout=1))
    assert recorder.log == [*phases(START), "eval 0", "generate 0", *phases(ROUND.format(0)), "eval 0"]


@pytest.mark.parametrize(
    ("flags", "left_out"),
    [
        ({"offload_train": False}, {"offload", "onload"}),
        ({"offload_rollout": False}, {"sleep_engines", "wake_engines"}),
        ({"offload_rollout": False, "offload_train": False}, {"sleep_engines", "wake_engines", "offload", "onload"}),
    ],
)
def test_who_is_not_offloaded_stays_and_the_order_is_kept(
    recorder: Recorder, flags: dict[str, bool], left_out: set[str]
) -> None:
    train.train(started(recorder, num_rollout=1, **flags))
    whole = [*phases(START), "generate 0", *phases(ROUND.format(0))]
    assert recorder.log == [phase for phase in whole if phase.split()[0] not in left_out]


def test_engines_wake_with_their_old_weights_where_no_push_is_due(recorder: Recorder) -> None:
    train.train(started(recorder, update_weights_interval=2, save=None))
    first = recorder.log.index("wake_engines weights", len(phases(START)))
    assert recorder.log[first : first + 3] == ["wake_engines weights", "wake_engines kv_cache,cuda_graph", "generate 1"]


def test_a_stopped_run_saves_in_the_trainers_turn(recorder: Recorder) -> None:
    run = started(recorder, save_interval=10, num_rollout=5)

    def loop() -> None:
        run.train(0, run.wait(run.generate(0)))
        raise Stopped

    with pytest.raises(Stopped):
        loop()
    run.__exit__(Stopped, None, None)
    assert recorder.log[-4:] == ["end_engines", "onload", "save 0", "saved 0"]


def test_an_engine_that_came_back_gets_weights_while_the_trainer_is_away(recorder: Recorder) -> None:
    run = started(recorder)
    recorder.log.clear()
    recorder.revived = [1]
    run.engines.recover()
    assert recorder.log == ["connect", "push"]


def test_an_engine_that_died_asleep_is_connected_when_it_wakes(recorder: Recorder) -> None:
    run = started(recorder, num_rollout=1, save=None)
    recorder.log.clear()
    recorder.revived = [1]
    run.train(0, recorder.batch(0))  # type: ignore[arg-type]
    assert recorder.log[recorder.log.index("wake_engines weights") :][:3] == ["wake_engines weights", "connect", "push"]


@pytest.mark.parametrize("death", ["train 1", "onload", "push", "offload", "save 1"])
def test_a_trainer_is_started_again_while_the_engines_sleep(recorder: Recorder, death: str) -> None:
    run = started(recorder)
    recorder.deaths[death] = RankLostError("training rank 0 died", "update_weights" if death == "push" else "train")
    run.repeat(train.train)
    kill = recorder.log.index("kill")
    after = [phase for phase in recorder.log[kill:] if phase != "hold"]
    assert after[:3] == ["kill", "sleep_engines", "init"]
    assert after[3:8] == phases("offload; wake_engines weights; connect; push; wake_engines kv_cache,cuda_graph")
    assert recorder.log[-1] == "live 1"
    assert not recorder.deaths


def test_a_rollout_whose_push_or_save_broke_off_behind_its_checkpoint_is_told(
    recorder: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    """The restart goes on behind it, so nobody else would report on it or tell the data source that its weights are live."""
    run = started(recorder)
    recorder.latest = lambda: max(
        (int(phase.split()[1]) + 1 for phase in recorder.log if phase.startswith("save ")), default=0
    )
    for death, method in (("offload", "offload"), ("saved 1", "save")):
        recorder.deaths[death] = RankLostError("training rank 0 died", method)
    run.repeat(train.train)
    assert [phase for phase in recorder.log if phase.split()[0] in ("train", "live")] == [
        *("train 0", "live 0", "train 1", "live 1"),
    ]
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("step ")] == ["0", "1"]


@pytest.mark.parametrize("paused", [True, False])
def test_engines_serve_again_after_a_rollback_that_no_step_follows(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    run = started(recorder, save=str(tmp_path), run_dir=str(tmp_path))
    folder = tmp_path / "iter_0000001"
    folder.mkdir()
    (folder / "meta.json").write_text('{"rollout_id": 0, "weight_version": 7}')
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("1")
    trainer: Any = run.processes.trainer
    trainer.restore = lambda iteration: recorder.note("restore", iteration)
    manager: Any = run.processes.manager._actor
    manager.on_weights_restored = SimpleNamespace(remote=lambda *_: None)
    ask_rollback(tmp_path, 7)
    recorder.log.clear()
    if paused:
        pause(tmp_path, 0, "a fuse")
    monkeypatch.setattr(run.stop, "wait", lambda _: asked_rollback(tmp_path) is None)
    with pytest.raises(Stopped) if paused else contextlib.nullcontext():
        run.updates.wait_while_paused(run._served_a_moment) if paused else run.serve_until_stopped()
    woken = phases("offload; wake_engines weights; push; wake_engines kv_cache,cuda_graph")
    asleep = ["sleep_engines", "onload"]
    assert recorder.log == [*asleep, "restore 1", *woken, *asleep, "save -1", *woken]


def test_engines_serve_again_after_the_end_of_the_data(recorder: Recorder) -> None:
    run = started(recorder, save_interval=10, num_rollout=5, serve_when_done=True)
    run.train(0, recorder.batch(0))  # type: ignore[arg-type]
    run.data_used(DataUsedError("data     all used"))
    assert (
        recorder.log[-4:]
        == ["saved 0", *phases("offload; wake_engines weights; push; wake_engines kv_cache,cuda_graph")][-4:]
    )


def test_roles_with_gpus_of_their_own_are_never_asked() -> None:
    run = Run(Arguments())
    run.processes.trainer = SimpleNamespace(update_weights=lambda: "7")  # type: ignore[assignment]
    run.engines.before_a_trainer()
    run.engines.leave_gpus()
    run.engines.take_gpus(push=False)
    assert not run.engines.alternate


# An engine


class Server:
    """What an engine posts to; refuses to take back what is there, as SGLang does by ending."""

    def __init__(self, engine: SGLangEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.away: set[str] = set()
        monkeypatch.setattr(engine, "_post", self.post)

    def post(self, route: str, **body: Any) -> None:
        tags = set(body.get("tags", ()))
        if route == "/release_memory_occupation":
            assert tags
            assert not tags & self.away
            assert "/pause_generation" in self.asked
            self.away |= tags
        if route == "/resume_memory_occupation":
            assert tags <= self.away
            self.away -= tags
        if route == "/continue_generation":
            assert not self.away, "requests would run without their memory"
        self.asked.append(route)


@pytest.fixture
def engine() -> SGLangEngine:
    return SGLangEngine(Arguments(run_dir="nowhere", device="cuda"), EngineSpec("policy", 0, 1))


def test_an_engine_holds_requests_until_all_its_memory_is_back(
    engine: SGLangEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(engine, monkeypatch)
    engine.sleep()
    assert server.away == {*WEIGHTS, *CACHE}
    engine.sleep()
    engine.continue_generation()
    engine.wake(WEIGHTS)
    engine.wake(WEIGHTS)
    engine.continue_generation()  # what a push ends with
    assert server.away == set(CACHE)
    assert "/continue_generation" not in server.asked
    engine.wake(CACHE)
    assert server.asked[-1] == "/continue_generation"
    assert not server.away
    engine.wake(CACHE)
    assert server.asked.count("/resume_memory_occupation") == 2


def test_an_engine_goes_to_sleep_again_in_the_middle_of_a_push(
    engine: SGLangEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(engine, monkeypatch)
    engine.sleep()
    engine.wake(WEIGHTS)
    engine.sleep()
    assert server.away == {*WEIGHTS, *CACHE}


# The manager's engines


class Handles:
    """Engine actors; ``bad`` are those that fail, each with its method."""

    def __init__(self, count: int) -> None:
        self.asked: list[tuple[int, str]] = []
        self.bad: set[tuple[int, str]] = set()
        self.handles = [self._handle(index) for index in range(count)]

    def _handle(self, index: int) -> Any:
        def method(name: str) -> Any:
            def call(*_: Any) -> Any:
                self.asked.append((index, name))
                future: Future[None] = Future()
                if (index, name) in self.bad:
                    future.set_exception(EngineError(f"engine {index}"))
                else:
                    future.set_result(None)
                return SimpleNamespace(future=lambda: future)

            return SimpleNamespace(remote=call)

        return RemoteEngine(SimpleNamespace(**{name: method(name) for name in ("sleep", "wake", "kill")}))


def pool_with(handles: Handles, revived: list[str], fault_tolerant: bool = True) -> EnginePool:
    def group(role: str) -> Any:
        revive, stop = lambda: revived.append(role) or [], lambda: None
        return SimpleNamespace(role=role, handles=handles.handles, revive=revive, stop=stop)

    return EnginePool(Arguments(use_fault_tolerance=fault_tolerant), [group("policy"), group("prm")])


def test_no_engine_is_started_on_the_trainers_gpus() -> None:
    handles, revived = Handles(2), []
    pool = pool_with(handles, revived)
    pool.sleep()
    assert handles.asked == [(0, "sleep"), (1, "sleep")]
    pool.revive()
    assert revived == ["prm"], "the judge has GPUs of its own"
    pool.wake(WEIGHTS)
    assert revived == ["prm", "policy", "prm"]


def test_a_restarted_engine_gets_no_weights_while_it_sleeps() -> None:
    """The driver looks after engines while the gate decides, in the trainer's turn."""
    pool = pool_with(Handles(2), [])
    pool._revived = [1]
    pool.sleep()
    assert pool.recover() == 0
    pool.wake(WEIGHTS)
    assert pool.recover() == 1
    assert pool.recover() == 0


@pytest.mark.parametrize("method", ["sleep", "wake"])
def test_an_engine_that_does_not_follow_is_ended(method: str) -> None:
    handles, revived = Handles(2), []
    handles.bad = {(1, method)}
    pool = pool_with(handles, revived)
    pool.sleep()
    pool.wake(WEIGHTS)
    assert [entry for entry in handles.asked if entry[1] == "kill"] == [(1, "kill")]
    assert "policy" in revived


def test_without_fault_tolerance_its_error_stands() -> None:
    handles = Handles(1)
    handles.bad = {(0, "sleep")}
    with pytest.raises(EngineError, match="engine 0"):
        pool_with(handles, [], fault_tolerant=False).sleep()


def signalled_while_it_waits(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have SIGTERM reach ``run`` in its first wait, which ends without an answer; later ones get theirs at once."""
    waits = iter([False])

    def wait(references: list[Any], timeout: float) -> Any:
        if next(waits, True):
            return references, []
        run.stop._handle(15, None)
        return [], references

    monkeypatch.setattr(ray, "wait", wait)


def test_a_signal_ends_a_run_whose_engines_do_not_fall_asleep(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are ended instead, so the last checkpoint is written at once."""
    run = started(recorder)
    run.step(0, {"shards": [], "critic_shards": [], "metrics": {}})
    run.engines.take_gpus()
    signalled_while_it_waits(run, monkeypatch)
    del recorder.log[:]
    with pytest.raises(Stopped):
        run.updates.save(0)
    run.__exit__(Stopped, None, None)
    assert recorder.log == ["sleep_engines", "end_engines", "onload", "save 0", "saved 0"]


def test_a_checkpoint_that_a_signal_finds_begun_is_finished(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not written again: the data source would save twice at a time."""
    run = started(recorder)
    run.step(0, {"shards": [], "critic_shards": [], "metrics": {}})
    del recorder.log[:]
    signalled_while_it_waits(run, monkeypatch)
    run.updates.save(0)
    run.__exit__(Stopped, None, None)
    assert recorder.log == ["save 0", "saved 0"]


def test_a_manager_that_ends_ends_the_engines_that_do_not_fall_asleep() -> None:
    handles, revived = Handles(1), []
    asleep: Future[None] = Future()
    asked = threading.Event()

    def sleep() -> Any:
        asked.set()
        return SimpleNamespace(future=lambda: asleep)

    def kill() -> Any:
        asleep.set_exception(EngineError("it was ended"))
        done: Future[None] = Future()
        done.set_result(None)
        return SimpleNamespace(future=lambda: done)

    handles.handles[0].actor.sleep.remote = sleep
    handles.handles[0].actor.kill.remote = kill
    pool = pool_with(handles, revived, fault_tolerant=False)

    def sleep_until_ended() -> None:
        with contextlib.suppress(EngineError):
            pool.sleep()

    sleeping = threading.Thread(target=sleep_until_ended, daemon=True)
    sleeping.start()
    assert asked.wait(60)
    pool.close()
    pool.stop()
    sleeping.join(60)
    assert asleep.done()
