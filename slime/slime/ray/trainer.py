"""The trainer of a run, as the driver sees it: the policy's ranks and, with PPO, the critic's.

Guarantees: values come from the critic's weights before its step, as old log probabilities do from the policy's. Policy
and critic step concurrently. A policy checkpoint is never published without the critic's of the same rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, Concatenate, ParamSpec

from ray import ObjectRef

from groundwork.process import StopRequested
from slime.args import Arguments
from slime.backends.trainer.remote_rank import RemoteCritic, RemotePolicy, RemoteRank
from slime.observability.metric_utils import STEPS
from slime.ray.actor_group import TrainGroup
from slime.ray.placement import ReservedPlacement
from slime.utils.probes import Answer, Probe
from slime.weight_sync.remote_engine import RemoteEngine

P = ParamSpec("P")


class Trainer:
    """Owns the policy's group and, if the placement has a critic, the critic's."""

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

    def train(self, rollout_id: int, shards: list[Any], critic_shards: list[Any]) -> dict[str, Any]:
        """Take the optimizer steps of a rollout, one shard per rank, and return the metrics."""
        if self._critic is None:
            return self._actor.gather(self._actor.send(RemotePolicy.train, rollout_id, shards))[0] or {}
        values = self._critic.send(RemoteCritic.values, rollout_id, critic_shards)
        returns = self._actor.send(RemotePolicy.prepare, rollout_id, shards, values.references)
        critic_steps = self._critic.ask(RemoteCritic.step, rollout_id, returns.references)
        steps = self._actor.ask(RemotePolicy.step, rollout_id, rollout_id >= self._critic_only)
        self._critic.gather(values)
        self._actor.gather(returns)
        return side_by_side(self._critic.gather(critic_steps)[0] or {}, self._actor.gather(steps)[0] or {})

    def connect_rollout_engines(self, engines: list[RemoteEngine]) -> None:
        """Build the weight update group of the policy's rank 0 and the engines; call again after an engine restart."""
        self._actor.call(RemotePolicy.connect_rollout_engines, engines)

    def update_weights(self) -> str:
        """Push the policy's weights to the engines and return their new version."""
        return self._actor.call(RemotePolicy.update_weights)[0]

    def push_candidate(self) -> None:
        """Push the policy's weights to the canary engine alone; see `slime.weight_sync.pushes`."""
        self._actor.call(RemotePolicy.push_candidate)

    def take_candidate_back(self) -> None:
        """Push the weights that serve to the canary engine, after `undo_steps`."""
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
