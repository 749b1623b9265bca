"""Ray for real: ranks see the GPU that Ray assigned, by its name, also where the cluster would show them all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ray import ObjectRef

from slime.args import Arguments
from slime.arguments.process_environment import CUMEM, NOSET
from slime.ray import cluster as cluster_module
from slime.ray.placement import create_placement
from slime.ray.trainer import RemotePolicy, TrainGroup

pytestmark = pytest.mark.timeout(300)

NAMES = ("GPU-f0f0", "GPU-a1a1")


class Telling:
    """A rank that tells what it started with."""

    def __init__(self, world_size: int, rank: int, master_addr: str) -> None:
        self.rank = rank

    def told(self) -> list[str | None]:
        return [os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", CUMEM, "LOCAL_RANK")]


class TellingRank(RemotePolicy):
    """Handle of a `Telling`."""

    def told(self) -> ObjectRef[list[str | None]]:
        return self.actor.told.remote()


@pytest.mark.parametrize("foreign", [pytest.param(False, marks=pytest.mark.long), True])
def test_each_rank_sees_the_gpu_that_ray_assigned(
    foreign: bool, monkeypatch: pytest.MonkeyPatch, repository: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{repository / 'slime'}{os.pathsep}{repository}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(NAMES))
    monkeypatch.setenv(NOSET, "1")
    monkeypatch.delenv(CUMEM, raising=False)
    if foreign:
        monkeypatch.setattr(cluster_module, "NOSET", "ANOTHER_NAME")  # whoever started Ray left it in
    args = Arguments(
        **{"device": "cuda", "train_backend": "fsdp", "run_dir": str(tmp_path), "debug_train_only": True},
        **{"num_nodes": 1, "num_gpus": 2, "actor_num_gpus_per_node": 2, "rollout_num_gpus": 0, "prm_num_gpus": 0},
    )
    with cluster_module.ray_cluster(args, num_gpus=2):
        reserved = create_placement(args)
        assert tuple(bundle.gpu_id for bundle in reserved.bundles) == NAMES
        ranks = TrainGroup(args, reserved, TellingRank, f"{__name__}.Telling")
        assert ranks.call(TellingRank.told) == [[name, "0", "0"] for name in NAMES]
        ranks.kill()
