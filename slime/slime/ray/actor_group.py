"""The training ranks of a role, policy or critic, as one object.

Guarantees: a call returns once every rank has returned. If a rank dies or raises, the call raises
:class:`RankLostError` or :class:`TrainerError` with the rank's number, even while other ranks wait for it in a
collective. An error that another rank's death may have caused is reported as that death. Losing a machine during the
wait raises NodeLostError. A signal ends the wait for a push and for answers to probes, whose work the ranks finish by themselves.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import ray
from ray import ObjectRef
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from groundwork.process import Stopped, StopRequested
from slime.args import Arguments
from slime.arguments.placement import data_parallel_size, shard_of_rank
from slime.arguments.process_environment import rank_environment
from slime.backends.trainer.remote_rank import RemoteCritic, RemoteRank
from slime.exceptions import CheckpointError, RankLostError, TrainerError
from slime.ray.nodes import POLL_SECONDS, check_nodes
from slime.ray.placement import ACTOR_GPU_SHARE, ReservedPlacement
from slime.ray.restarts import death_line
from slime.utils.misc import load_function, say

ACTORS = {
    ("fsdp", "actor"): "slime.backends.fsdp_utils.backend.FSDPTrainActor",
    ("fsdp", "critic"): "slime.backends.fsdp_utils.backend.FSDPCriticActor",
    ("megatron", "actor"): "slime.backends.megatron_utils.backend.MegatronTrainActor",
    ("megatron", "critic"): "slime.backends.megatron_utils.backend.MegatronCriticActor",
}
"""The class of a rank by back end and role."""
INTERRUPTIBLE = ("init", "connect_rollout_engines", "update_weights", "ask")
"""Methods that a stopping run does not wait for: they change no state that a checkpoint holds."""
_SHUTDOWN_TIMEOUT_SECONDS = 20.0
DEATH_SECONDS = 30.0
"""Seconds after a rank's failure in which another rank's death may be the cause. Connections close before Ray reports a death,
and Ray reports a lost machine only after five checks, three seconds apart."""
OWN_ERRORS = (
    *(
        ArithmeticError,
        AssertionError,
        AttributeError,
        ImportError,
        LookupError,
        MemoryError,
        NameError,
        TypeError,
        ValueError,
    ),
    *(FileNotFoundError, PermissionError, CheckpointError),
)
"""Errors that another rank's death cannot cause; these, and out of memory on a device, are reported at once."""
_OUT_OF_MEMORY = "OutOfMemoryError"  # by name, so that the driver need not import torch


R = TypeVar("R", bound=RemoteRank)
T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True)
class Asked(Generic[T]):
    """The running calls of one method, by rank."""

    method: str
    references: list[ObjectRef[T]]


class TrainGroup(Generic[R]):
    """Owns one actor per rank, on the role's GPUs in placement order."""

    def __init__(
        self,
        args: Arguments,
        reserved: ReservedPlacement,
        handle: type[R],
        actor_path: str | None = None,
        stop: StopRequested | None = None,
    ) -> None:
        """Create the actors.

        Args:
            args: of the run.
            reserved: where they go.
            handle: of the role.
            actor_path: overrides the role's class.
            stop: signals that end the waits of `INTERRUPTIBLE`.
        """
        self._args = args
        self._stop = stop
        self._nodes = reserved.other_nodes
        role = "critic" if issubclass(handle, RemoteCritic) else "actor"
        self._noun = "training rank" if role == "actor" else "critic rank"
        actor_path = actor_path or ACTORS[args.train_backend, role]
        gpus = reserved.placement.actor if role == "actor" else reserved.placement.critic
        master = reserved.bundles[gpus[0]]
        per_node = args.actor_num_gpus_per_node if role == "actor" else args.critic_num_gpus_per_node
        actor_class = ray.remote(load_function(actor_path))
        self._ranks: list[R] = []
        for rank, gpu in enumerate(gpus):
            variables = rank_environment(
                args,
                os.environ,
                rank=rank,
                world_size=len(gpus),
                local_rank=rank % per_node,
                cores=reserved.bundles[gpu].cores,
                ranks=reserved.ranks_beside(gpu),
            )
            options = reserved.options(gpu, ACTOR_GPU_SHARE)
            actor = actor_class.options(runtime_env={"env_vars": variables}, **options)
            self._ranks.append(handle(actor.remote(len(gpus), rank, master.node_ip)))

    def init(self) -> int:
        """Build model and optimizer on every rank, load a checkpoint, and return the first rollout to train on."""
        starts = self.gather(self.send_init())
        if len(set(starts)) != 1:
            raise TrainerError(f"ranks disagree on the first rollout: {starts}; use one --load for all nodes")
        return starts[0]

    def send_init(self) -> Asked[Any]:
        """Start ``init`` on every rank once rank 0 listens, for :meth:`gather`."""
        (port,) = self.gather(Asked("open_rendezvous", [self._ranks[0].open_rendezvous()]))
        for rank in self._ranks[1:]:
            rank.meet_at(port)
        return self.ask(RemoteRank.init, self._args)

    def call(
        self, method: Callable[Concatenate[R, P], ObjectRef[T]], *arguments: P.args, **keywords: P.kwargs
    ) -> list[T]:
        """Call ``method`` on every rank and return the results."""
        return self.gather(self.ask(method, *arguments, **keywords))

    def ask(
        self, method: Callable[Concatenate[R, P], ObjectRef[T]], *arguments: P.args, **keywords: P.kwargs
    ) -> Asked[T]:
        """Call ``method`` on every rank without waiting, for :meth:`gather`."""
        return Asked(method.__name__, [method(rank, *arguments, **keywords) for rank in self._ranks])

    def send(
        self,
        method: Callable[Concatenate[R, int, Any, P], ObjectRef[T]],
        rollout_id: int,
        shards: list[Any],
        *arguments: P.args,
        **keywords: P.kwargs,
    ) -> Asked[T]:
        """Call ``method(rollout_id, shard, ...)`` on every rank without waiting, with one shard per copy of the model."""
        copies = data_parallel_size(self._args, len(self._ranks))
        if len(shards) != copies:
            raise TrainerError(f"got {len(shards)} shards for {copies} copies of the model; pass one per copy")
        pairs = zip(self._ranks, shard_of_rank(self._args, shards, len(self._ranks)), strict=True)
        references = [method(rank, rollout_id, shard, *arguments, **keywords) for rank, shard in pairs]
        return Asked(method.__name__, references)

    def shutdown(self) -> None:
        """Leave the process groups and end the actors."""
        if references := [rank.shutdown() for rank in self._ranks]:
            ray.wait(references, num_returns=len(references), timeout=_SHUTDOWN_TIMEOUT_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill the actors immediately."""
        for rank in self._ranks:
            ray.kill(rank.actor)
        self._ranks = []

    def gather(self, asked: Asked[T]) -> list[T]:
        """Wait for every rank and return the results; the module describes failures."""
        method = asked.method
        waiting: dict[Any, int] = {reference: rank for rank, reference in enumerate(asked.references)}
        while waiting:
            answered, _ = ray.wait(list(waiting), num_returns=1, timeout=POLL_SECONDS)
            if not answered:
                check_nodes(self._nodes)  # a rank scheduled on a lost machine never answers
                if self._stop and method in INTERRUPTIBLE:
                    raise Stopped
                continue
            done = answered[0]
            rank = waiting.pop(done)
            try:
                ray.get(done)
            except RayActorError as error:
                raise self._lost(rank, method, error) from error
            except RayTaskError as error:
                cause = error.cause
                said = f"{self._noun} {rank} failed in {method}: {type(cause).__name__}: {cause}"
                if not isinstance(cause, OWN_ERRORS) and type(cause).__name__ != _OUT_OF_MEMORY:
                    self._check_deaths(method, waiting, said)
                if isinstance(cause, ObjectLostError):
                    raise RankLostError(said, method) from error
                raise TrainerError(said) from error
        return ray.get(asked.references)

    def _lost(self, rank: int, method: str, error: RayActorError) -> RankLostError:
        return RankLostError(death_line(f"{self._noun} {rank} died in {method}", error), method)

    def _check_deaths(self, method: str, waiting: dict[Any, int], said: str) -> None:
        """Raise RankLostError if a rank that has not answered is dead or dies within ``DEATH_SECONDS``.

        ``said`` is the failed rank's message, shown to the user meanwhile.
        """
        if waiting:
            say(f"{said.splitlines()[0]}; checking for up to {DEATH_SECONDS:.0f} s whether another one has died")
        deadline = time.monotonic() + DEATH_SECONDS
        left = dict(waiting)
        while left and (seconds := deadline - time.monotonic()) > 0:
            check_nodes(self._nodes)
            for reference in ray.wait(list(left), num_returns=1, timeout=min(seconds, POLL_SECONDS))[0]:
                rank = left.pop(reference)
                try:
                    ray.get(reference)
                except RayActorError as error:
                    raise self._lost(rank, method, error) from error
                except RayTaskError:
                    continue
