"""From the flags to the actors that Ray starts: classes, environment, and how often the engines are looked at."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from slime.args import Arguments
from slime.arguments.placement import Placement
from slime.backends.fsdp_utils.backend import FSDPCriticActor, FSDPTrainActor
from slime.backends.megatron_utils.backend import MegatronCriticActor, MegatronTrainActor
from slime.ray import engine_pool, rollout, trainer
from slime.ray.engine_pool import EnginePool
from slime.ray.rollout import RolloutManager
from slime.ray.trainer import RemoteCritic, RemotePolicy, Trainer, TrainGroup


class Remote:
    """What `ray.remote` makes of a class: it remembers what each actor is started with."""

    started: list[Remote] = []

    def __init__(self, actor_class: Any) -> None:
        self.actor_class = actor_class

    def options(self, **options: Any) -> Remote:
        self.variables = options["runtime_env"]["env_vars"]
        return self

    def remote(self, *_: Any) -> None:
        made = Remote(self.actor_class)
        made.variables = self.variables
        self.started.append(made)


def ranks(monkeypatch: pytest.MonkeyPatch, role: str = "actor", **changes: Any) -> list[Remote]:
    """The actors of two ranks of ``role``."""
    monkeypatch.setattr(Remote, "started", [])
    monkeypatch.setattr(trainer.ray, "remote", Remote)
    placement = Placement(actor=(0, 1), rollout=(), judge=(), critic=(0, 1))
    bundle = SimpleNamespace(node_ip="127.0.0.1", cores=32)
    reserved: Any = SimpleNamespace(
        placement=placement,
        bundles=[bundle] * 2,
        options=lambda gpu, share: {},
        other_nodes={},
        ranks_beside=lambda gpu: 4,
    )
    sizes = {"actor_num_gpus_per_node": 2, "critic_num_gpus_per_node": 2}
    values = {"device": "cpu", "train_backend": "fsdp", **sizes, **changes}
    TrainGroup(Arguments(**values), reserved, RemoteCritic if role == "critic" else RemotePolicy)
    return Remote.started


def test_ranks_have_the_variables_of_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in ranks(monkeypatch, train_env_vars={"NCCL_DEBUG": "INFO", "DEPTH": 3}):
        assert (rank.variables["NCCL_DEBUG"], rank.variables["DEPTH"]) == ("INFO", "3")
    assert not {"NCCL_DEBUG", "CUBLAS_WORKSPACE_CONFIG"} & ranks(monkeypatch)[0].variables.keys()
    assert ranks(monkeypatch, deterministic_mode=True)[0].variables["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_a_node_has_as_many_local_ranks_as_the_flag_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [rank.variables["LOCAL_RANK"] for rank in ranks(monkeypatch)] == ["0", "1"]
    one = ranks(monkeypatch, actor_num_gpus_per_node=1)
    assert [rank.variables["LOCAL_RANK"] for rank in one] == ["0", "0"]
    critic = ranks(monkeypatch, "critic", critic_num_gpus_per_node=1)
    assert [rank.variables["LOCAL_RANK"] for rank in critic] == ["0", "0"]
    cuda = ranks(monkeypatch, device="cuda")
    assert [rank.variables["LOCAL_RANK"] for rank in cuda] == ["0", "0"]
    assert "OMP_NUM_THREADS" not in cuda[0].variables


def test_ranks_share_the_cores_of_their_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    offload = ranks(monkeypatch, device="cuda", fsdp_cpu_offload=True)
    assert [rank.variables["OMP_NUM_THREADS"] for rank in offload] == ["8", "8"]


def test_the_back_end_is_that_of_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank's process makes a rank of that back end, behind an actor that Ray calls by its class."""
    classes = {
        ("fsdp", "actor"): FSDPTrainActor,
        ("fsdp", "critic"): FSDPCriticActor,
        ("megatron", "actor"): MegatronTrainActor,
        ("megatron", "critic"): MegatronCriticActor,
    }
    assert trainer.ACTORS.keys() == classes.keys()
    for (backend, role), expected in classes.items():
        actor = ranks(monkeypatch, role, train_backend=backend)[0].actor_class
        assert (actor.__name__, type(actor(2, 1, "127.0.0.1").rank)) == (expected.__name__, expected)


def test_what_the_driver_asks_reaches_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rank:
        def __init__(self, *started: Any) -> None:
            self.started = started

        def step(self, *asked: Any, **more: Any) -> Any:
            return self.started, asked, more

    monkeypatch.setattr(trainer, "load_function", {"a.module.Rank": Rank}.__getitem__)
    actor = trainer.rank_class("a.module.Rank", RemotePolicy, "cpu")(2, 1, "host")
    assert actor.step(7, learn=True) == ((2, 1, "host"), (7,), {"learn": True})


def test_the_driver_names_the_ranks_without_torch() -> None:
    code = """
import sys, slime.ray.run
from slime.ray.trainer import ACTORS, RemotePolicy, rank_class
print([rank_class(path, RemotePolicy, "cpu").__name__ for path in ACTORS.values()], "torch" in sys.modules)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == f"{[path.rpartition('.')[2] for path in trainer.ACTORS.values()]} False"


def test_only_the_critic_learns_in_the_first_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = []

    class Group:
        def __init__(self, *_: Any, stop: Any) -> None:
            """Every argument will do."""

        def send(self, *_: Any) -> Any:
            return SimpleNamespace(references=[])

        def ask(self, method: Any, rollout_id: int, learn: Any, passes: int) -> Any:
            if method is RemotePolicy.step:
                learned.append(learn)
            return self.send()

        def gather(self, asked: Any) -> list[dict[str, Any]]:
            return [{"steps": []}]

    monkeypatch.setattr("slime.ray.trainer.TrainGroup", Group)
    monkeypatch.setattr("slime.ray.trainer.side_by_side", lambda critic, policy: {})
    reserved: Any = SimpleNamespace(placement=SimpleNamespace(critic=(1,)))
    trainer = Trainer(Arguments(num_critic_only_steps=2), reserved)
    for rollout_id in range(4):
        trainer.train(rollout_id, [], [])
    assert learned == [False, False, True, True]


class Closing:
    """An event that is set at the third look, and says how long was waited."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def is_set(self) -> bool:
        return False

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        return len(self.waited) > 2


def test_engines_are_looked_at_in_the_interval_of_the_flag() -> None:
    looks: list[int] = []
    group: Any = SimpleNamespace(role="prm", revive=lambda: looks.append(1))
    pool = EnginePool(Arguments(rollout_health_check_interval=0.25, use_fault_tolerance=True), [group])
    closing: Any = Closing()
    pool._closing = closing
    pool._watch()
    assert (closing.waited, len(looks)) == ([0.25] * 3, 2)


@pytest.mark.parametrize("wanted", [True, False])
def test_engines_are_watched_where_the_flag_wants_it(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    threads = []
    group = SimpleNamespace(role="policy", revive=lambda: ["engine"])
    started = SimpleNamespace(start=lambda: threads.append(1))
    monkeypatch.setattr(engine_pool.threading, "Thread", lambda **_: started)
    monkeypatch.setattr(rollout, "engine_groups", lambda *_: [group])
    monkeypatch.setattr(EnginePool, "start", lambda self, placement: None)
    monkeypatch.setattr(rollout, "init_http_client", lambda args: None)
    reserved: Any = SimpleNamespace(placement=Placement(actor=(0,), rollout=(1,), judge=()))
    args = Arguments(
        use_fault_tolerance=wanted,
        rollout_global_dataset=False,
        data_source_path="slime.rollout.data_source.RolloutDataSource",
        rollout_function_path="slime.rollout.sft_rollout.generate_rollout",
        eval_function_path="slime.rollout.sleep_rollout.sleep",
    )
    manager = RolloutManager(args, reserved)
    assert type(manager._data_source).__name__ == "RolloutDataSource"
    functions = (manager._batches._generate, manager._batches._evaluate)
    assert tuple(function.__module__ for function in functions) == (
        "slime.rollout.sft_rollout",
        "slime.rollout.sleep_rollout",
    )
    assert len(threads) == wanted
    assert manager.recover_engines() == wanted
