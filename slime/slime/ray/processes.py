"""The processes that a run owns: reserved placement, rollout manager and trainer.

Guarantees: a call to a dead rollout manager or a lost machine ends in a `LostError`. After `end_trainer` and `dispose_manager` no
process is left. `Run` creates manager and trainer, because it decides when.
"""

from __future__ import annotations

from typing import TypeVar

from ray import ObjectRef
from ray.exceptions import RayActorError, RayTaskError

from groundwork.process import StopRequested
from slime.exceptions import ManagerLostError
from slime.ray.nodes import check_nodes, get_watching
from slime.ray.placement import ReservedPlacement
from slime.ray.remote_manager import RemoteManager
from slime.ray.restarts import death_line
from slime.ray.trainer import Trainer

T = TypeVar("T")


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
        self._trainer: Trainer | None = None

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
    def trainer(self) -> Trainer:
        """The trainer, which must be there."""
        assert self._trainer is not None
        return self._trainer

    @trainer.setter
    def trainer(self, trainer: Trainer) -> None:
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
            return get_watching(reference, self._nodes(), stop)
        except RayActorError as error:
            if isinstance(error, RayTaskError):  # the manager lives and reports another actor's death
                raise
            raise ManagerLostError(death_line("the rollout manager died", error)) from error

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
