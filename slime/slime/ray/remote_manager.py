"""The rollout manager's actor as the driver sees it: one typed method per call, which returns the call's reference.

`RolloutManager` says what each of them does; `Processes.value` waits for a reference. Stateless beyond the handle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ray
from ray import ObjectRef

if TYPE_CHECKING:
    from slime.ray.engine_pool import SetApart
    from slime.ray.rollout import RolloutBatch
    from slime.rollout.before_push import Decision
    from slime.rollout.data_source import Story
    from slime.weight_sync.remote_engine import RemoteEngine

DISPOSE_TIMEOUT_SECONDS = 60.0
ALIVE_TIMEOUT_SECONDS = 30.0


class RemoteManager:
    """Owned by the driver; ``actor`` is the handle."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    # The actor

    def is_alive(self) -> bool:
        """Return whether the actor answers; raise RayActorError if it is dead."""
        reference = self.addresses()
        if not ray.wait([reference], timeout=ALIVE_TIMEOUT_SECONDS)[0]:
            return False
        ray.get(reference)
        return True

    def kill(self) -> None:
        """End the actor at once."""
        ray.kill(self._actor)

    def dispose(self) -> None:
        """Let it stop what it started, then end it."""
        ray.wait([self._actor.dispose.remote()], timeout=DISPOSE_TIMEOUT_SECONDS)
        self.kill()

    # Engines

    def addresses(self) -> ObjectRef[dict[str, str]]:
        return self._actor.addresses.remote()

    def engine_arguments(self) -> ObjectRef[dict[str, Any]]:
        return self._actor.engine_arguments.remote()

    def engine_handles(self) -> ObjectRef[list[RemoteEngine]]:
        return self._actor.engine_handles.remote()

    def recover_engines(self) -> ObjectRef[int]:
        return self._actor.recover_engines.remote()

    def weights_arrived(self) -> ObjectRef[bool | None]:
        return self._actor.weights_arrived.remote()

    def hold_engines(self, only_last: bool) -> ObjectRef[None]:
        return self._actor.hold_engines.remote(only_last)

    def sleep_engines(self) -> ObjectRef[None]:
        return self._actor.sleep_engines.remote()

    def wake_engines(self, parts: tuple[str, ...]) -> ObjectRef[None]:
        return self._actor.wake_engines.remote(parts)

    def end_engines(self) -> ObjectRef[None]:
        return self._actor.end_engines.remote()

    def set_apart(self) -> ObjectRef[SetApart | None]:
        return self._actor.set_apart.remote()

    def rejoin(self) -> ObjectRef[None]:
        return self._actor.rejoin.remote()

    # Rollouts

    def rollouts_per_epoch(self) -> ObjectRef[int]:
        return self._actor.rollouts_per_epoch.remote()

    def generate(self, rollout_id: int) -> ObjectRef[RolloutBatch]:
        return self._actor.generate.remote(rollout_id)

    def eval(self, rollout_id: int) -> ObjectRef[dict[str, Any]]:
        return self._actor.eval.remote(rollout_id)

    def evaluation_progress(self) -> ObjectRef[tuple[int, int]]:
        return self._actor.evaluation_progress.remote()

    # The data source

    def load(self, rollout_id: int) -> ObjectRef[None]:
        return self._actor.load.remote(rollout_id)

    def save(self, rollout_id: int) -> ObjectRef[None]:
        return self._actor.save.remote(rollout_id)

    def before_rollouts(self) -> ObjectRef[Story]:
        return self._actor.before_rollouts.remote()

    def on_weights_live(self, rollout_id: int, version: str) -> ObjectRef[None]:
        return self._actor.on_weights_live.remote(rollout_id, version)

    def on_step_refused(self, rollout_id: int, why: str) -> ObjectRef[None]:
        return self._actor.on_step_refused.remote(rollout_id, why)

    def on_gate_decided(self, rollout_id: int, decision: Decision) -> ObjectRef[None]:
        return self._actor.on_gate_decided.remote(rollout_id, decision)

    def on_step_undone(self, rollout_id: int, why: str) -> ObjectRef[None]:
        return self._actor.on_step_undone.remote(rollout_id, why)

    def on_weights_restored(self, rollout_id: int, from_rollout_id: int, version: str) -> ObjectRef[None]:
        return self._actor.on_weights_restored.remote(rollout_id, from_rollout_id, version)

    def data_source_attribute(self, name: str) -> ObjectRef[tuple[bool, Any]]:
        return self._actor.data_source_attribute.remote(name)

    def call_data_source(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> ObjectRef[Any]:
        return self._actor.call_data_source.remote(name, arguments, keywords)
