"""The trainer of a run, as the driver sees it: the policy's ranks and, with PPO, the critic's.

A `RemoteRank` is the typed handle of one rank: a method starts the actor's method of the same name and returns its reference;
the class behind the actor says what it does. A `TrainGroup` has the ranks of a role, and `Trainer` has the groups.

Guarantees: values come from the critic's weights before its step, as old log probabilities do from the policy's. Policy
and critic step concurrently. A policy checkpoint is never published without the critic's of the same rollout.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import ray
from ray import ObjectRef
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from groundwork.process import Stopped, StopRequested
from slime.args import Arguments
from slime.arguments.placement import data_parallel_size, shard_of_rank
from slime.arguments.process_environment import rank_environment
from slime.exceptions import CheckpointError, RankLostError, TrainerError
from slime.observability.metric_utils import STEPS
from slime.ray.nodes import POLL_SECONDS, check_nodes
from slime.ray.placement import ACTOR_GPU_SHARE, ReservedPlacement
from slime.ray.restarts import death_line
from slime.utils.kernel_caches import keep_kernels
from slime.utils.misc import load_function
from slime.utils.probes import Answer, Probe
from slime.utils.run_logs import say
from slime.weight_sync import Sent
from slime.weight_sync.remote_engine import RemoteEngine


@dataclass(frozen=True)
class RemoteRank:
    """Handle of a rank of either role; ``actor`` is Ray's handle. A shard is data or a reference to it."""

    actor: Any

    def open_rendezvous(self) -> ObjectRef[int]:
        return self.actor.open_rendezvous.remote()

    def meet_at(self, port: int) -> ObjectRef[None]:
        return self.actor.meet_at.remote(port)

    def init(self, args: Arguments) -> ObjectRef[Any]:
        return self.actor.init.remote(args)

    def take_snapshot(self) -> ObjectRef[None]:
        return self.actor.take_snapshot.remote()

    def keep_steps(self) -> ObjectRef[None]:
        return self.actor.keep_steps.remote()

    def undo_steps(self) -> ObjectRef[None]:
        return self.actor.undo_steps.remote()

    def offload(self) -> ObjectRef[None]:
        return self.actor.offload.remote()

    def onload(self) -> ObjectRef[None]:
        return self.actor.onload.remote()

    def save(self, rollout_id: int) -> ObjectRef[str]:
        return self.actor.save.remote(rollout_id)

    def publish(self, rollout_id: int) -> ObjectRef[None]:
        return self.actor.publish.remote(rollout_id)

    def restore(self, iteration: int) -> ObjectRef[None]:
        return self.actor.restore.remote(iteration)

    def options_read(self) -> ObjectRef[frozenset[str]]:
        return self.actor.options_read.remote()

    def shutdown(self) -> ObjectRef[None]:
        return self.actor.shutdown.remote()


@dataclass(frozen=True)
class RemotePolicy(RemoteRank):
    """Handle of a rank of the policy."""

    def train(self, rollout_id: int, shard: Any, passes: int) -> ObjectRef[dict[str, Any] | None]:
        return self.actor.train.remote(rollout_id, shard, passes)

    def prepare(self, rollout_id: int, shard: Any, values: Sequence[Any]) -> ObjectRef[dict[int, Any]]:
        return self.actor.prepare.remote(rollout_id, shard, values)

    def step(self, rollout_id: int, learn: bool, passes: int) -> ObjectRef[dict[str, Any] | None]:
        return self.actor.step.remote(rollout_id, learn, passes)

    def ask(self, served: bool, probes: Sequence[Probe]) -> ObjectRef[dict[int, Answer]]:
        return self.actor.ask.remote(served, probes)

    def versions(self) -> ObjectRef[tuple[str, str]]:
        return self.actor.versions.remote()

    def let_in(self, mark: str) -> ObjectRef[str]:
        return self.actor.let_in.remote(mark)

    def restore_person(self, mark: str, name: str | None) -> ObjectRef[None]:
        return self.actor.restore_person.remote(mark, name)

    def connect_rollout_engines(self, engines: list[RemoteEngine]) -> ObjectRef[None]:
        return self.actor.connect_rollout_engines.remote(engines)

    def update_weights(self) -> ObjectRef[str]:
        return self.actor.update_weights.remote()

    def push_candidate(self) -> ObjectRef[None]:
        return self.actor.push_candidate.remote()

    def offer_candidate(self) -> ObjectRef[Sent]:
        return self.actor.offer_candidate.remote()

    def take_candidate_back(self) -> ObjectRef[None]:
        return self.actor.take_candidate_back.remote()


@dataclass(frozen=True)
class RemoteCritic(RemoteRank):
    """Handle of a rank of the critic."""

    def load_checkpoint(self, start_rollout_id: int) -> ObjectRef[None]:
        return self.actor.load_checkpoint.remote(start_rollout_id)

    def values(self, rollout_id: int, shard: Any) -> ObjectRef[dict[int, Any]]:
        return self.actor.values.remote(rollout_id, shard)

    def step(self, rollout_id: int, returns: Sequence[Any], passes: int) -> ObjectRef[dict[str, Any] | None]:
        return self.actor.step.remote(rollout_id, returns, passes)


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


def rank_class(path: str, handle: type[RemoteRank], device: str) -> type:
    """Return a class for Ray, called as that at ``path``, with the methods of ``handle``.

    A rank's own process imports the class at ``path`` and makes the rank, so that the driver needs no torch. On a GPU
    (``device`` is "cuda") it keeps the kernels that it compiles.
    """

    def start(self: Any, *arguments: Any) -> None:
        if device == "cuda":
            keep_kernels(os.environ)
        self.rank = load_function(path)(*arguments)

    def passed_on(name: str) -> Callable[..., Any]:
        def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
            return getattr(self.rank, name)(*arguments, **keywords)

        return method

    methods = {name: passed_on(name) for name in dir(handle) if not name.startswith("_")}
    return type(path.rpartition(".")[2], (), {"__init__": start, **methods})


R = TypeVar("R", bound=RemoteRank)
T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True)
class Asked(Generic[T]):
    """The running calls of one method, by rank."""

    method: str
    references: list[ObjectRef[T]]


class TrainGroup(Generic[R]):
    """The ranks of a role as one object; owns one actor per rank, on the role's GPUs in placement order.

    A call returns once every rank has returned. If a rank dies or raises, the call raises :class:`RankLostError` or
    :class:`TrainerError` with the rank's number, even while other ranks wait for it in a collective. An error that another
    rank's death may have caused is reported as that death. Losing a machine during the wait raises NodeLostError. A signal ends
    the wait for a push and for answers to probes, whose work the ranks finish by themselves.

    Example:
        >>> versions = group.call(RemotePolicy.update_weights)  # doctest: +SKIP
        >>> saving = group.ask(RemoteRank.save, 40)  # every rank begins  # doctest: +SKIP
        >>> folders = group.gather(saving)  # doctest: +SKIP
    """

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
        actor_class = ray.remote(rank_class(actor_path, handle, args.device))
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
        """Wait for every rank and return the results; the class describes failures."""
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
                problem = f"{self._noun} {rank} failed in {method}: {type(cause).__name__}: {cause}"
                if not isinstance(cause, OWN_ERRORS) and type(cause).__name__ != _OUT_OF_MEMORY:
                    self._check_deaths(method, waiting, problem)
                if isinstance(cause, ObjectLostError):
                    raise RankLostError(problem, method) from error
                raise TrainerError(problem) from error
        return ray.get(asked.references)

    def _lost(self, rank: int, method: str, error: RayActorError) -> RankLostError:
        return RankLostError(death_line(f"{self._noun} {rank} died in {method}", error), method)

    def _check_deaths(self, method: str, waiting: dict[Any, int], problem: str) -> None:
        """Raise RankLostError if a rank that has not answered is dead or dies within ``DEATH_SECONDS``.

        ``problem`` is the failed rank's message, shown to the user meanwhile.
        """
        if waiting:
            say(f"{problem.splitlines()[0]}; checking for up to {DEATH_SECONDS:.0f} s whether another one has died")
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


class Trainer:
    """Owns the policy's group and, if the placement has a critic, the critic's.

    Example:
        >>> trainer.take_snapshot()  # doctest: +SKIP
        >>> metrics = trainer.train(7, batch["shards"], batch["critic_shards"])  # doctest: +SKIP
        >>> trainer.undo_steps() if refused else trainer.keep_steps()  # doctest: +SKIP
        >>> version = trainer.update_weights()  # doctest: +SKIP
    """

    def __init__(self, args: Arguments, reserved: ReservedPlacement, stop: StopRequested | None = None) -> None:
        """``stop``: signals that end the wait for a push or for answers to probes."""
        self._critic_only = args.num_critic_only_steps
        self._actor = TrainGroup(args, reserved, RemotePolicy, stop=stop)
        self._critic = TrainGroup(args, reserved, RemoteCritic, stop=stop) if reserved.placement.critic else None

    def init(self) -> int:
        """Build models and optimizers, load checkpoints, and return the first rollout to train on."""
        if self._critic is None:
            return self._actor.init()
        building = self._critic.send_init()
        start = self._actor.init()
        self._critic.gather(building)
        self._critic.call(RemoteCritic.load_checkpoint, start)
        return start

    def train(self, rollout_id: int, shards: list[Any], critic_shards: list[Any], passes: int = 1) -> dict[str, Any]:
        """Take the optimizer steps of a rollout ``passes`` times, one shard per rank, and return the metrics."""
        if self._critic is None:
            return self._actor.gather(self._actor.send(RemotePolicy.train, rollout_id, shards, passes))[0] or {}
        values = self._critic.send(RemoteCritic.values, rollout_id, critic_shards)
        returns = self._actor.send(RemotePolicy.prepare, rollout_id, shards, values.references)
        critic_steps = self._critic.ask(RemoteCritic.step, rollout_id, returns.references, passes)
        steps = self._actor.ask(RemotePolicy.step, rollout_id, rollout_id >= self._critic_only, passes)
        self._critic.gather(values)
        self._actor.gather(returns)
        return side_by_side(self._critic.gather(critic_steps)[0] or {}, self._actor.gather(steps)[0] or {})

    def let_in(self, mark: str) -> str:
        """Train and ask the adapter of the person with this mark from now on; return the version that serves this person."""
        return self._actor.call(RemotePolicy.let_in, mark)[0]

    def restore_person(self, mark: str, name: str | None) -> None:
        """Go back to a version of one person, None: to the base; a push gives its weights a new version."""
        self._actor.call(RemotePolicy.restore_person, mark, name)

    def connect_rollout_engines(self, engines: list[RemoteEngine]) -> None:
        """Build the weight update group of the policy's rank 0 and the engines; call again after an engine restart."""
        self._actor.call(RemotePolicy.connect_rollout_engines, engines)

    def update_weights(self) -> str:
        """Push the policy's weights to the engines and return their new version."""
        return self._actor.call(RemotePolicy.update_weights)[0]

    def push_candidate(self) -> None:
        """Push the policy's weights to the canary engine alone; see `slime.weight_sync.pushes`."""
        self._actor.call(RemotePolicy.push_candidate)

    def offer_candidate(self) -> Sent:
        """Push the policy's weights to all engines before they are accepted; see `slime.weight_sync.pushes`."""
        return self._actor.call(RemotePolicy.offer_candidate)[0]

    def take_candidate_back(self) -> None:
        """Push the weights that serve to the engines that have a candidate, after `undo_steps`."""
        self._actor.call(RemotePolicy.take_candidate_back)

    def take_snapshot(self) -> None:
        """Copy to the host what the next steps change, on every rank."""
        self._all(RemoteRank.take_snapshot)

    def keep_steps(self) -> None:
        """Keep what was trained since `take_snapshot`."""
        self._all(RemoteRank.keep_steps)

    def undo_steps(self) -> None:
        """Go back to the state at `take_snapshot`, bit for bit."""
        self._all(RemoteRank.undo_steps)

    def versions(self) -> tuple[str, str]:
        """Return the version that serves, and the one that the trainer's weights get; equal if no step changed them."""
        return self._actor.call(RemotePolicy.versions)[0]

    def ask(self, served: bool, probes: Sequence[Probe]) -> list[Answer]:
        """Return one answer per probe, with the weights that are ``served`` or with the trainer's."""
        return merged(self._actor.call(RemotePolicy.ask, served, list(probes)), len(probes))

    def options_read(self) -> frozenset[str]:
        """Return the names of the arguments that any rank has read."""
        groups = [group for group in (self._actor, self._critic) if group is not None]
        return frozenset().union(*(names for group in groups for names in group.call(RemoteRank.options_read)))

    def restore(self, iteration: int) -> None:
        """Go back to the run's checkpoints after ``iteration`` rollouts; a push gives the weights a new version."""
        self._all(RemoteRank.restore, iteration)

    def save(self, rollout_id: int) -> str:
        """Write checkpoints that contain the step of ``rollout_id`` and return the policy's folder.

        A run resumes from them once they are published.
        """
        if self._critic is not None:
            self._critic.call(RemoteRank.save, rollout_id)
        return self._actor.call(RemoteRank.save, rollout_id)[0]

    def publish(self, rollout_id: int) -> None:
        """Mark the checkpoints of ``rollout_id`` as the latest and delete those beyond ``--save-keep``."""
        self._actor.call(RemoteRank.publish, rollout_id)
        if self._critic is not None:
            self._critic.call(RemoteRank.publish, rollout_id)

    def offload(self) -> None:
        """Move the ranks' GPU memory to the host; while offloaded, only weight pushes work."""
        self._all(RemoteRank.offload)

    def onload(self) -> None:
        """Move the ranks' memory back to their GPUs."""
        self._all(RemoteRank.onload)

    def _all(
        self, method: Callable[Concatenate[RemoteRank, P], ObjectRef[None]], *arguments: P.args, **keywords: P.kwargs
    ) -> None:
        groups = [group for group in (self._actor, self._critic) if group is not None]
        asked = [group.ask(method, *arguments, **keywords) for group in groups]
        for group, calls in zip(groups, asked, strict=True):
            group.gather(calls)

    def shutdown(self) -> None:
        """Leave the process groups and end the actors."""
        for group in (self._actor, self._critic):
            if group is not None:
                group.shutdown()

    def kill(self) -> None:
        """Kill all ranks immediately."""
        for group in (self._actor, self._critic):
            if group is not None:
                group.kill()


def merged(parts: Sequence[dict[int, Answer]], count: int) -> list[Answer]:
    """Return ``count`` answers from those of each rank by the probe's number; two ranks may share a probe."""
    answers = [Answer([], [], False) for _ in range(count)]
    for number, answer in (item for part in parts for item in part.items()):
        scores, reply, finished = answers[number]
        answers[number] = Answer(answer.log_probs or scores, answer.greedy_ids or reply, answer.finished or finished)
    return answers


def side_by_side(critic: dict[str, Any], policy: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics of both, merged per step; only the critic's if the policy took no steps."""
    pairs = zip_longest(critic[STEPS], policy[STEPS], fillvalue={})
    return {**critic, **policy, STEPS: [{**first, **second} for first, second in pairs]}
