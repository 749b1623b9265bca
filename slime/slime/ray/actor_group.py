"""The training ranks as one object.

Guarantees: a call returns when every rank has returned; when a rank dies or raises, the call raises :class:`TrainerError`
that names the rank at once, also while the others wait for it in a collective operation.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from slime.exceptions import TrainerError
from slime.ray.placement import ACTOR_GPU_SHARE, ReservedPlacement
from slime.utils.misc import load_function

FSDP_ACTOR = "slime.backends.fsdp_utils.actor.FSDPTrainActor"
_SHUTDOWN_TIMEOUT_SECONDS = 20.0


class TrainGroup:
    """Owns one actor per rank, on the actor GPUs of the placement in order."""

    def __init__(self, args: Namespace, reserved: ReservedPlacement, actor_path: str = FSDP_ACTOR) -> None:
        self._args = args
        gpus = reserved.placement.actor
        master = reserved.bundles[gpus[0]]
        per_node = args.actor_num_gpus_per_node
        actor_class = ray.remote(load_function(actor_path))
        self._ranks: list[Any] = []
        for rank, gpu in enumerate(gpus):
            variables = {
                "MASTER_ADDR": master.node_ip,
                "MASTER_PORT": str(master.free_port),
                "WORLD_SIZE": str(len(gpus)),
                "RANK": str(rank),
                "TQDM_DISABLE": "1",
                # Ray shows each rank its own GPU only.
                "LOCAL_RANK": "0" if args.device == "cuda" else str(rank % per_node),
            }
            if args.device == "cpu":
                variables["OMP_NUM_THREADS"] = "1"
            options = reserved.options(gpu, ACTOR_GPU_SHARE)
            actor = actor_class.options(runtime_env={"env_vars": variables}, **options)
            self._ranks.append(actor.remote(len(gpus), rank, master.node_ip, master.free_port))

    def init(self) -> int:
        """Build model and optimizer on every rank, load a checkpoint, and return the first rollout to train on."""
        starts = self._call("init", self._args)
        if len(set(starts)) != 1:
            raise TrainerError(f"ranks disagree on the first rollout: {starts}; use one --load for all nodes")
        return starts[0]

    def connect_rollout_engines(self, engines: list[Any]) -> None:
        """Build the weight update group of rank 0 and the engines; again after an engine was started again."""
        self._call("connect_rollout_engines", engines)

    def train(self, rollout_id: int, shards: list[Any]) -> dict[str, Any]:
        """Train on one shard per rank and return rank 0's metrics."""
        if len(shards) != len(self._ranks):
            raise TrainerError(f"{len(shards)} shards for {len(self._ranks)} ranks")
        references = [rank.train.remote(rollout_id, shard) for rank, shard in zip(self._ranks, shards, strict=True)]
        return self._gather("train", references)[0] or {}

    def update_weights(self) -> str:
        """Push the weights to the engines and return their new version."""
        return self._call("update_weights")[0]

    def save(self, rollout_id: int) -> str:
        """Write a checkpoint that contains the step of ``rollout_id`` and return its folder."""
        return self._call("save", rollout_id)[0]

    def shutdown(self) -> None:
        """Leave the process groups and end the actors."""
        references = [rank.shutdown.remote() for rank in self._ranks]
        ray.wait(references, num_returns=len(references), timeout=_SHUTDOWN_TIMEOUT_SECONDS)
        for rank in self._ranks:
            ray.kill(rank)
        self._ranks = []

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        return self._gather(method, [getattr(rank, method).remote(*arguments) for rank in self._ranks])

    def _gather(self, method: str, references: list[Any]) -> list[Any]:
        waiting: dict[Any, int] = {reference: rank for rank, reference in enumerate(references)}
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            rank = waiting.pop(done)
            try:
                ray.get(done)
            except RayActorError as error:
                raise TrainerError(
                    f"training rank {rank} died in {method}: {error}. Start again with --resume to continue at the last "
                    "checkpoint"
                ) from error
            except RayTaskError as error:
                cause = error.cause
                raise TrainerError(
                    f"training rank {rank} failed in {method}: {type(cause).__name__}: {cause}"
                ) from error
        return ray.get(references)
