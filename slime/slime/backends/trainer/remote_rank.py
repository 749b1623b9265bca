"""Typed handles of training ranks, for policy and critic.

A method starts the actor's method of the same name and returns its reference; the class behind the actor says what the
method does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slime.args import Arguments
from slime.utils.probes import Answer, Probe
from slime.weight_sync.remote_engine import RemoteEngine

if TYPE_CHECKING:
    from ray import ObjectRef


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

    def shutdown(self) -> ObjectRef[None]:
        return self.actor.shutdown.remote()


@dataclass(frozen=True)
class RemotePolicy(RemoteRank):
    """Handle of a rank of the policy."""

    def train(self, rollout_id: int, shard: Any) -> ObjectRef[dict[str, Any] | None]:
        return self.actor.train.remote(rollout_id, shard)

    def prepare(self, rollout_id: int, shard: Any, values: Sequence[Any]) -> ObjectRef[dict[int, Any]]:
        return self.actor.prepare.remote(rollout_id, shard, values)

    def step(self, rollout_id: int, learn: bool) -> ObjectRef[dict[str, Any] | None]:
        return self.actor.step.remote(rollout_id, learn)

    def ask(self, served: bool, probes: Sequence[Probe]) -> ObjectRef[dict[int, Answer]]:
        return self.actor.ask.remote(served, probes)

    def versions(self) -> ObjectRef[tuple[str, str]]:
        return self.actor.versions.remote()

    def connect_rollout_engines(self, engines: list[RemoteEngine]) -> ObjectRef[None]:
        return self.actor.connect_rollout_engines.remote(engines)

    def update_weights(self) -> ObjectRef[str]:
        return self.actor.update_weights.remote()

    def push_candidate(self) -> ObjectRef[None]:
        return self.actor.push_candidate.remote()

    def take_candidate_back(self) -> ObjectRef[None]:
        return self.actor.take_candidate_back.remote()


@dataclass(frozen=True)
class RemoteCritic(RemoteRank):
    """Handle of a rank of the critic."""

    def load_checkpoint(self, start_rollout_id: int) -> ObjectRef[None]:
        return self.actor.load_checkpoint.remote(start_rollout_id)

    def values(self, rollout_id: int, shard: Any) -> ObjectRef[dict[int, Any]]:
        return self.actor.values.remote(rollout_id, shard)

    def step(self, rollout_id: int, returns: Sequence[Any]) -> ObjectRef[dict[str, Any] | None]:
        return self.actor.step.remote(rollout_id, returns)
