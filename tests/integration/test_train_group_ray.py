"""Training ranks as Ray actors: a call is over when all are, and a dead rank is named at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from slime.args import Arguments
from slime.exceptions import RankLostError, TrainerError
from slime.ray import trainer
from slime.ray.cluster import ray_cluster
from slime.ray.placement import ReservedPlacement, create_placement
from slime.ray.trainer import RemotePolicy, TrainGroup


class StandInActor:
    """A rank that does what it is told in its shard."""

    def __init__(self, world_size: int, rank: int, master_addr: str) -> None:
        self.rank = rank
        self.port = 0
        self.facts = (world_size, rank, os.environ["RANK"])

    def open_rendezvous(self) -> int:
        self.port = 4000
        return self.port

    def meet_at(self, port: int) -> None:
        self.port = port

    def init(self, args: Arguments) -> int:
        assert self.port == 4000, "every rank knows where they meet"
        return args.starts[self.rank]

    def train(self, rollout_id: int, shard: Any, passes: int) -> Any:
        if shard == "die":
            os._exit(1)
        if shard == "raise":
            raise ValueError("a bad shard")
        if shard == "cut":
            raise RuntimeError("Connection closed by peer")
        if shard == "wait":
            threading.Event().wait()
        return {"facts": self.facts, "shard": shard, "rollout": rollout_id}

    def shutdown(self) -> None:
        """Nothing to leave."""


@pytest.fixture(scope="module")
def args(tmp_path_factory: pytest.TempPathFactory) -> Arguments:
    args = Arguments(
        device="cpu",
        run_dir=str(tmp_path_factory.mktemp("run")),
        debug_rollout_only=False,
        debug_train_only=True,
        colocate=False,
        num_nodes=1,
        actor_num_nodes=1,
        actor_num_gpus_per_node=2,
        rollout_num_gpus=0,
        rollout_num_gpus_per_engine=1,
        prm_enable=False,
        prm_num_gpus=0,
        prm_num_gpus_per_engine=1,
        num_gpus=2,
    )
    vars(args).update(starts=(3, 3))
    return args


@pytest.fixture(scope="module")
def reserved(args: Arguments, repository: Path) -> Iterator[ReservedPlacement]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{repository / 'slime'}{os.pathsep}{repository}")
        with ray_cluster(args, num_gpus=2):
            yield create_placement(args)


def group(args: Arguments, reserved: ReservedPlacement) -> TrainGroup[RemotePolicy]:
    return TrainGroup(args, reserved, RemotePolicy, f"{__name__}.StandInActor")


def train(ranks: TrainGroup[RemotePolicy], rollout_id: int, shards: list[Any]) -> list[Any]:
    return ranks.gather(ranks.send(RemotePolicy.train, rollout_id, shards, 1))


def test_every_rank_gets_its_shard(args: Arguments, reserved: ReservedPlacement) -> None:
    ranks = group(args, reserved)
    assert ranks.init() == 3
    assert train(ranks, 5, [ray.put("first"), ray.put("second")])[0] == {
        "facts": (2, 0, "0"),
        "shard": "first",
        "rollout": 5,
    }
    with pytest.raises(TrainerError, match="1 shards for 2 copies of the model"):
        train(ranks, 5, ["first"])
    with pytest.raises(TrainerError, match=r"rank 1 failed in train: .*"):
        train(ranks, 6, ["first", "raise"])
    ranks.shutdown()


def test_a_dead_rank_is_named_while_the_others_wait(args: Arguments, reserved: ReservedPlacement) -> None:
    ranks = group(args, reserved)
    with pytest.raises(RankLostError, match="training rank 1 died in train"):
        train(ranks, 0, ["wait", "die"])
    ranks.kill()


def test_an_error_that_comes_with_a_death_is_told_as_the_death(
    args: Arguments, reserved: ReservedPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "DEATH_SECONDS", 120.0)  # the one that dies may start much later than the other
    ranks = group(args, reserved)
    with pytest.raises(RankLostError, match="training rank 1 died in train"):
        train(ranks, 0, ["cut", "die"])
    ranks.kill()


def test_ranks_must_agree_on_the_first_rollout(args: Arguments, reserved: ReservedPlacement) -> None:
    ranks = group(args, reserved)
    disagreeing = args.changed(starts=(1, 2))
    ranks._args = disagreeing
    with pytest.raises(TrainerError, match="disagree"):
        ranks.init()
    ranks.shutdown()
