"""The processes that a run owns: reserved placement, rollout manager and trainer.

Guarantees: a call to a dead rollout manager or a lost machine ends in a `LostError`. After `end_trainer` and `dispose_manager` no
process is left. `Run` creates manager and trainer, because it decides when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import ray
from ray import ObjectRef
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from groundwork.process import Stopped, StopRequested
from slime.args import Arguments
from slime.exceptions import ManagerLostError
from slime.ray.nodes import POLL_SECONDS, check_nodes
from slime.ray.placement import ReservedPlacement
from slime.ray.restarts import death_line
from slime.ray.rollout import RolloutManager
from slime.ray.trainer import Trainer

if TYPE_CHECKING:
    from slime.backends.tinker_utils.trainer import TinkerTrainer
    from slime.ray.rollout import RolloutBatch
    from slime.rollout.before_push import Decision
    from slime.rollout.data_source import Story
    from slime.weight_sync.remote_engine import EngineLife, RemoteEngine


T = TypeVar("T")
MANAGER_THREADS = 16
DISPOSE_TIMEOUT_SECONDS = 60.0
ALIVE_TIMEOUT_SECONDS = 30.0


class RemoteManager:
    """The rollout manager's actor as the driver sees it; owned by the driver.

    A method starts the call and returns its reference. `RolloutManager` says what the call does, and `Processes.value` waits
    for it.

    Example:
        >>> manager = create_rollout_manager(args, reserved)  # doctest: +SKIP
        >>> batch = processes.value(manager.generate(0))  # doctest: +SKIP
    """

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

    def set_apart(self) -> ObjectRef[EngineLife | None]:
        return self._actor.set_apart.remote()

    def rejoin(self) -> ObjectRef[None]:
        return self._actor.rejoin.remote()

    def options_read(self) -> ObjectRef[frozenset[str]]:
        return self._actor.options_read.remote()

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

    def on_person_restored(self, person: str, to_version: str, version: str) -> ObjectRef[None]:
        return self._actor.on_person_restored.remote(person, to_version, version)

    def data_source_attribute(self, name: str) -> ObjectRef[tuple[bool, Any]]:
        return self._actor.data_source_attribute.remote(name)

    def call_data_source(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> ObjectRef[Any]:
        return self._actor.call_data_source.remote(name, arguments, keywords)


def create_rollout_manager(args: Arguments, reserved: ReservedPlacement) -> RemoteManager:
    """Create the manager's actor on the driver's machine; its engines are up once its first call returns.

    It requests no CPU core, because the run's GPU bundles may hold all of them.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    remote = ray.remote(RolloutManager).options(
        num_cpus=0, num_gpus=0, max_concurrency=MANAGER_THREADS, scheduling_strategy=here
    )
    return RemoteManager(remote.remote(args, reserved))


class Processes:
    """Owned by `Run`.

    Attributes:
        stop: whether a signal asks the run to stop.
        ending: whether the run ends, so that signals interrupt nothing any more.
        reserved: the placement; None before it is made.
        loaded: whether the manager's data source was restored to the trainer's rollout.
    """

    def __init__(self, stop: StopRequested) -> None:
        self.stop = stop
        self.ending = False
        self.reserved: ReservedPlacement | None = None
        self.loaded = False
        self._manager: RemoteManager | None = None
        self._trainer: Trainer | TinkerTrainer | None = None

    @property
    def manager(self) -> RemoteManager:
        """The rollout manager, which must be there."""
        assert self._manager is not None
        return self._manager

    @manager.setter
    def manager(self, manager: RemoteManager) -> None:
        self._manager = manager

    @property
    def has_manager(self) -> bool:
        """Whether there is a rollout manager."""
        return self._manager is not None

    @property
    def trainer(self) -> Trainer | TinkerTrainer:
        """The trainer, which must be there."""
        assert self._trainer is not None
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Trainer | TinkerTrainer) -> None:
        self._trainer = trainer

    @property
    def has_trainer(self) -> bool:
        """Whether there is a trainer: not before the start, nor in a run without training."""
        return self._trainer is not None

    def _nodes(self) -> dict[str, str]:
        """Machines to watch, without the driver's own."""
        return self.reserved.other_nodes if self.reserved else {}

    def check_nodes(self) -> None:
        """Raise NodeLostError if a machine is lost."""
        check_nodes(self._nodes())

    def value(self, reference: ObjectRef[T], *, heed_signals: bool = True) -> T:
        """Return the value of a reference.

        Raises:
            ManagerLostError: the rollout manager died.
            NodeLostError: a machine is lost meanwhile.
            Stopped: a signal arrives before the value, unless the run is ending.
        """
        stop = self.stop if heed_signals and not self.ending else None
        try:
            return self._watched(reference, stop)
        except RayActorError as error:
            if isinstance(error, RayTaskError):  # the manager lives and reports another actor's death
                raise
            raise ManagerLostError(death_line("the rollout manager died", error)) from error

    def _watched(self, reference: ObjectRef[T], stop: StopRequested | None) -> T:
        while not ray.wait([reference], timeout=POLL_SECONDS)[0]:
            self.check_nodes()
            if stop:
                raise Stopped
        return ray.get(reference)

    def kill_manager(self) -> None:
        """Kill the rollout manager, if there is one."""
        if self._manager is not None:
            self._manager.kill()
        self._manager = None

    def forget_dead_manager(self) -> bool:
        """Return whether the rollout manager is dead; one that does not answer is killed and counts as dead."""
        if self._manager is None:
            return False
        try:
            if self._manager.is_alive():
                return False
            self._manager.kill()
        except RayActorError:
            pass
        self._manager = None
        return True

    def end_trainer(self) -> None:
        """End the training ranks."""
        if self._trainer is not None:
            self._trainer.shutdown()

    def dispose_manager(self) -> None:
        """Let the rollout manager stop what it started, then end it."""
        if self._manager is not None:
            self._manager.dispose()
