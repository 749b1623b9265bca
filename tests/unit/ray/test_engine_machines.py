"""Engines on several machines: what is started on each, and that they live and die as a whole."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from groundwork.exceptions import ConfigError
from groundwork.machine import this_host
from slime.args import Arguments
from slime.arguments.placement import EngineSpec, describe_placement
from slime.backends.sglang_utils import engine_process
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.backends.sglang_utils.engine_process import EngineProcess
from slime.backends.sglang_utils.server_args import server_command
from slime.exceptions import EngineError, EngineNodeLostError
from slime.ray import engine_group
from slime.ray.engine_group import EngineGroup, by_machine
from slime.ray.placement import ReservedPlacement
from slime.weight_sync.remote_engine import RemoteProcess
from tests.helpers.machines import reserved

FOUR = ("1", "1", "2", "2", "3", "3", "4", "4")


def machines_of(places: ReservedPlacement, role: Any, gpus_per_node: int, nodes: int = 4) -> list[list[EngineSpec]]:
    args = Arguments(num_nodes=nodes, num_gpus_per_node=gpus_per_node)
    return [[part for _, part in by_machine(args, places, spec)] for spec in places.placement.engines(role)]


def test_an_engine_of_one_machine_listens_where_the_others_reach_it() -> None:
    found = machines_of(reserved("1", "1", "2", "2"), "policy", 2)
    assert found == [
        [EngineSpec("policy", 0, 2, (0, 1), "10.0.0.1")],
        [EngineSpec("policy", 1, 2, (0, 1), "10.0.0.2")],
    ]
    assert machines_of(reserved("1", "1"), "policy", 2, nodes=1)[0][0].host == "127.0.0.1"


@pytest.mark.parametrize("role", ["policy", "prm"])
def test_an_engine_of_several_machines_has_consecutive_ones(role: Any) -> None:
    places = reserved(*FOUR, *(f"{int(place) + 4}" for place in FOUR), per_engine=4, judge=8)
    first = 1 if role == "policy" else 5
    assert machines_of(places, role, 2) == [
        [
            EngineSpec(role, index, 4, (0, 1), f"10.0.0.{first + 2 * index}", nodes=2, node_rank=0),
            EngineSpec(role, index, 4, (0, 1), f"10.0.0.{first + 2 * index + 1}", nodes=2, node_rank=1),
        ]
        for index in range(2)
    ]


def test_an_engine_that_one_machine_can_hold_stays_on_it() -> None:
    with pytest.raises(ConfigError, match="engine-policy-0 would span 2 machines, although one of"):
        machines_of(reserved("1", "2"), "policy", 2)


def test_machines_of_an_engine_have_the_same_number_of_its_gpus() -> None:
    with pytest.raises(ConfigError, match="engine-policy-0 would have 1, 2, 1 GPUs on its machines"):
        machines_of(reserved("1", "2", "2", "3", per_engine=4), "policy", 2)


@pytest.mark.parametrize(("role", "flag"), [("policy", "rollout"), ("prm", "prm")])
def test_an_engine_of_several_machines_begins_with_a_whole_one(role: Any, flag: str) -> None:
    def placed(trainer: int, judges_too: bool) -> Any:
        sizes = {"rollout_num_gpus": 4, "rollout_num_gpus_per_engine": 4 if role == "policy" else 1}
        judge = {"prm_enable": judges_too, "prm_num_gpus": 4, "prm_num_gpus_per_engine": 4}
        own = {"num_nodes": 6, "num_gpus_per_node": 2, "actor_num_nodes": 1, "actor_num_gpus_per_node": trainer}
        return describe_placement(Arguments(**sizes, **judge, **own))

    judges = role == "prm"
    assert placed(2, judges).gpus(role) == ((6, 7, 8, 9) if judges else (2, 3, 4, 5))
    with pytest.raises(ConfigError, match=f"--{flag}-num-gpus-per-engine 4: an engine that spans machines takes"):
        placed(1, judges)


def arguments(run_dir: Path, **changes: Any) -> Arguments:
    given = {"hf_checkpoint": "policy", "run_dir": str(run_dir), "device": "cuda", "seed": 1}
    return Arguments(**(given | changes))


def given(args: Arguments, spec: EngineSpec, *, cpu: bool = False) -> dict[str, str]:
    words = server_command(args, spec, port=5, cpu=cpu, rendezvous="10.0.0.1:7")
    return {word: after for word, after in pairwise(words) if word.startswith("--")}


def test_each_machine_is_told_its_place(tmp_path: Path) -> None:
    places = reserved(*FOUR, per_engine=8)
    args = arguments(tmp_path, num_nodes=4, num_gpus_per_node=2, sglang_pp_size=2)
    parts = [part for _, part in by_machine(args, places, places.placement.engines("policy")[0])]
    for rank, part in enumerate(parts):
        words = given(args, part)
        assert (words["--nnodes"], words["--node-rank"], words["--dist-init-addr"]) == ("4", str(rank), "10.0.0.1:7")
        assert (words["--tp-size"], words["--pp-size"]) == ("4", "2")
        assert (words["--host"], words["--random-seed"]) == (f"10.0.0.{rank + 1}", "1")
        on_cpu = given(args, part, cpu=True)
        assert (on_cpu["--tp-size"], on_cpu.get("--pp-size")) == ("4", None)  # a rank on each machine
    assert "--nnodes" not in given(args, EngineSpec("policy", 0, 8, tuple(range(8))))
    names = ["engine-policy-0", "engine-policy-0-node-1", "engine-policy-0-node-2", "engine-policy-0-node-3"]
    assert [part.name for part in parts] == names
    assert SGLangEngine(args, parts[0]).num_weight_ranks() == 8
    assert SGLangEngine(arguments(tmp_path, device="cpu"), parts[0]).num_weight_ranks() == 4


class Child:
    """A process that runs until it is ended."""

    def __init__(self) -> None:
        self.returncode: int | None = None
        self.pid = os.getpid()

    def alive(self) -> bool:
        return self.returncode is None

    def kill(self) -> None:
        self.returncode = -9

    def stop(self, timeout: float) -> None:
        self.returncode = -15

    def log_tail(self) -> str:
        return "the end of a log"


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str], Child]]:
    """The processes that were started: command, environment, process."""
    found: list[Any] = []

    def spawn(command: list[str], *, env: dict[str, str], **_: Any) -> Child:
        found.append((command, env, Child()))
        return found[-1][2]

    monkeypatch.setattr(engine_process, "spawn", spawn)
    monkeypatch.setattr(SGLangEngine, "health", lambda self: True)
    monkeypatch.delenv("SGLANG_CPU_OMP_THREADS_BIND", raising=False)
    return found


class Handle:
    """Stands in for the handle of an actor, which may be lost."""

    def __init__(self, actor: Any) -> None:
        self.actor, self.lost = actor, False

    def __getattr__(self, method: str) -> Any:
        def remote(*arguments: Any, **keywords: Any) -> Any:
            future: Future[Any] = Future()
            try:
                if self.lost:
                    raise ConnectionError("its machine is gone")
                future.set_result(getattr(self.actor, method)(*arguments, **keywords))
            except (ConnectionError, EngineError) as error:
                future.set_exception(error)
            return SimpleNamespace(future=lambda: future)

        return SimpleNamespace(remote=remote)


def engine_on_two(run_dir: Path, device: str = "cpu") -> tuple[SGLangEngine, Handle]:
    args = arguments(run_dir, device=device)
    specs = [EngineSpec("policy", 0, 4, (0, 1), "127.0.0.1", 2, rank) for rank in range(2)]
    other = Handle(EngineProcess(args, specs[1]))
    return SGLangEngine(args, specs[0], others=[RemoteProcess(other)]), other


def value(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


def test_its_processes_start_together_and_meet(tmp_path: Path, spawned: list[Any]) -> None:
    engine, _ = engine_on_two(tmp_path)
    url = engine.start(hold=True)
    assert url == engine.start()
    assert sorted(value(command, "--node-rank") for command, _, _ in spawned) == ["0", "1"]
    assert len({value(command, "--dist-init-addr") for command, _, _ in spawned}) == 1
    [server] = [command for command, _, _ in spawned if value(command, "--node-rank") == "0"]
    assert url.endswith(f":{value(server, '--port')}")
    assert [command for command, _, _ in spawned if "--hold-requests" in command] == [server]
    for _, environment, _ in spawned:
        assert environment["SGLANG_USE_MESSAGE_QUEUE_BROADCASTER"] == "0"
        assert len(environment["SGLANG_CPU_OMP_THREADS_BIND"].split(",")) == len(os.sched_getaffinity(0))
    assert engine.hosts() == [this_host(), this_host()]
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [
        "engine-policy-0-node-1.log",
        "engine-policy-0.log",
    ]


def test_only_engines_of_several_machines_get_their_variables(tmp_path: Path, spawned: list[Any]) -> None:
    SGLangEngine(arguments(tmp_path, device="cpu"), EngineSpec("policy", 0, 1)).start()
    engine_on_two(tmp_path, device="cuda")[0].start()
    names = [{name for name in env if name.startswith(("SGLANG_CPU_OMP", "SGLANG_USE_MESS"))} for _, env, _ in spawned]
    assert names == [set(), {"SGLANG_USE_MESSAGE_QUEUE_BROADCASTER"}, {"SGLANG_USE_MESSAGE_QUEUE_BROADCASTER"}]
    assert spawned[1][1]["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.parametrize("victim", [0, 1])
def test_one_dead_process_is_a_dead_engine_that_starts_as_a_whole(
    tmp_path: Path, spawned: list[Any], victim: int
) -> None:
    engine, _ = engine_on_two(tmp_path)
    url = engine.start()
    assert engine.alive()
    assert not engine.restart_if_dead()
    first = [process for _, _, process in spawned]
    first[victim].kill()
    assert not engine.alive()
    assert engine.restart_if_dead()
    assert not any(process.alive() for process in first), "all of the old one is ended"
    assert len(spawned) == 4
    assert engine.alive()
    assert (engine.url(), engine.starts()) == (url, 2)


@pytest.mark.parametrize("how", ["stop", "kill", "end_failed_update"])
def test_it_ends_as_a_whole(tmp_path: Path, spawned: list[Any], how: str) -> None:
    engine, _ = engine_on_two(tmp_path)
    engine.start()
    getattr(engine, how)(*([engine.starts()] if how == "end_failed_update" else []))
    assert not any(process.alive() for _, _, process in spawned)


def test_the_end_of_a_failed_update_waits_for_a_look_at_the_other_machines(
    tmp_path: Path, spawned: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = engine_on_two(tmp_path)
    engine.start()
    monkeypatch.setattr("slime.backends.sglang_utils.engine._HEALTH_SECONDS", 0.0)
    with ThreadPoolExecutor(1) as pool:
        with engine._lock:  # as a look has it while a machine is slow to answer
            ending = pool.submit(engine.end_failed_update, engine.starts())
            assert not wait([ending], timeout=0.1).done
        ending.result(60.0)
    assert not any(process.alive() for _, _, process in spawned)


def test_a_start_that_fails_on_one_machine_leaves_nothing(
    tmp_path: Path, spawned: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def the_other_ends(engine: SGLangEngine) -> bool:
        spawned[0][2].returncode = 1
        return False

    monkeypatch.setattr(SGLangEngine, "health", the_other_ends)
    engine, _ = engine_on_two(tmp_path)
    with pytest.raises(
        EngineError,
        match=r"(?s)engine-policy-0 ended with status None, 1 .*engine-policy-0-node-1 is a part of it\. Log:",
    ):
        engine.start()
    assert len(spawned) == 2
    assert not any(process.alive() for _, _, process in spawned)


def test_a_machine_that_is_gone_is_named(tmp_path: Path, spawned: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    engine, other = engine_on_two(tmp_path)
    engine.start()
    other.lost = True
    with pytest.raises(
        EngineNodeLostError, match=r"policy-0: its process on machine 2 of 2 .* alive \(its machine is gone"
    ):
        engine.restart_if_dead()
    assert "the end of a log\nengine-policy-0: its process on machine 2 of 2" in engine._explain("is silent")
    engine.kill()
    assert not spawned[1][2].alive(), "what can be reached is ended"
    monkeypatch.setattr(engine_process, "ANSWER_SECONDS", 0.0)
    silent = SimpleNamespace(alive=SimpleNamespace(remote=lambda: SimpleNamespace(future=Future)))
    with pytest.raises(EngineNodeLostError, match=r"does not answer alive \(for 0 s\)"):
        engine_process.OtherNodes("engine-prm-1", [RemoteProcess(silent)]).alive()


class Made:
    """Stands in for Ray: actors are made in this process, and what is killed is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.handles: list[Handle] = []
        self.killed: list[Handle] = []
        self.gpus: list[int] = []
        monkeypatch.setattr(engine_group.ray, "remote", self.remote)
        monkeypatch.setattr(engine_group.ray, "get", self.get)
        monkeypatch.setattr(engine_group.ray, "kill", self.killed.append)
        monkeypatch.setattr(ReservedPlacement, "options", lambda placement, gpu, share: {"gpu": gpu})

    def remote(self, kind: type) -> Any:
        def make(*arguments: Any) -> Handle:
            self.handles.append(Handle(kind(*arguments)))
            return self.handles[-1]

        def with_options(*, gpu: int, max_concurrency: int) -> Arguments:
            self.gpus.append(gpu)
            return SimpleNamespace(remote=make)

        return SimpleNamespace(options=with_options)

    @staticmethod
    def get(references: Any, timeout: float | None = None) -> Any:
        if isinstance(references, list):
            return [reference.future().result() for reference in references]
        return references.future().result()


def started_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spawned: list[Any]) -> tuple[EngineGroup, list[str]]:
    """Two engines of two machines each, and their addresses."""
    monkeypatch.setattr(engine_process, "find_available_port", lambda host: 9)
    monkeypatch.setattr(SGLangEngine, "pause_generation", lambda *_: None)
    places = reserved(*FOUR, per_engine=4)
    args = arguments(tmp_path, num_nodes=4, num_gpus_per_node=2, router="auto", debug_rollout_only=False)
    monkeypatch.setattr("slime.backends.sglang_utils.engine.find_available_port", lambda host: 40000 + len(spawned))
    no_router = Arguments(router=None)
    monkeypatch.setattr(engine_group, "serve_behind_one_address", lambda args, role, urls: no_router)
    group = EngineGroup(args, places, "policy")
    urls = [reference.future().result() for reference in group.start()]
    group.finish_start(urls)
    return group, urls


def test_a_group_has_an_actor_on_each_machine_and_makes_an_engine_anew_when_one_is_gone(
    tmp_path: Path, spawned: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(monkeypatch)
    group, urls = started_group(tmp_path, monkeypatch, spawned)
    assert made.gpus == [2, 0, 6, 4]
    assert [url.partition(":4")[0] for url in urls] == ["http://10.0.0.1", "http://10.0.0.3"], "one address an engine"
    assert group.revive() == []
    second = group.handles[1].actor
    made.handles[2].lost = True  # an actor of the second engine
    assert group.revive() == [1]
    assert set(made.killed) == {second, made.handles[2]}
    assert made.gpus == [2, 0, 6, 4, 6, 4]
    assert second.actor.url() == group.handles[1].actor.actor.url()
    assert group.revive() == []
    everyone = {*made.handles} - {*made.killed}
    group.stop()
    assert set(made.killed) >= everyone
    alive = [process for _, _, process in spawned if process.alive()]
    assert alive == [spawned[2][2]], "only that of the machine that is gone"


def test_a_group_ends_the_other_machines_of_an_engine_whose_first_is_gone(
    tmp_path: Path, spawned: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(monkeypatch)
    group, _ = started_group(tmp_path, monkeypatch, spawned)
    group.handles[0].actor.lost = True
    group.stop()
    assert set(made.killed) == {*made.handles}
    alive = [command for command, _, process in spawned if process.alive()]
    assert [(value(command, "--host"), value(command, "--node-rank")) for command in alive] == [("10.0.0.1", "0")]
