"""The processes that a run owns: reserved placement, rollout manager and trainer.

Guarantees: a call to a dead rollout manager or a lost machine ends in a `LostError`. `end` leaves no process behind.
`Run` creates manager and trainer, because it decides when.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from groundwork.process import StopRequested
from slime.exceptions import ManagerLostError
from slime.ray.nodes import get_watching
from slime.ray.placement import ReservedPlacement
from slime.ray.restarts import death_line
from slime.ray.trainer import Trainer

DISPOSE_TIMEOUT_SECONDS = 60.0
ALIVE_TIMEOUT_SECONDS = 30.0


class RunProcesses:
    """Owned by `Run`.

    Attributes:
        reserved: the placement; None before it is made.
        manager: the rollout manager's actor, or None.
        loaded: whether the manager's data source was restored to the trainer's rollout.
        trainer: the trainer; None before the start and in a run without training.
    """

    def __init__(self) -> None:
        self.reserved: ReservedPlacement | None = None
        self.manager: Any = None
        self.loaded = False
        self.trainer: Trainer | None = None

    def nodes(self) -> dict[str, str]:
        """Machines to watch, without the driver's own."""
        return self.reserved.other_nodes if self.reserved else {}

    def value(self, reference: Any, stop: StopRequested | None) -> Any:
        """Return the value of a reference.

        Raises:
            ManagerLostError: the rollout manager died.
            NodeLostError: a machine is lost meanwhile.
            Stopped: a signal arrives before the value.
        """
        try:
            return get_watching(reference, self.nodes(), stop)
        except RayActorError as error:
            if isinstance(error, RayTaskError):  # the manager lives and reports another actor's death
                raise
            raise ManagerLostError(death_line("the rollout manager died", error)) from error

    def kill_manager(self) -> None:
        """Kill the rollout manager, if there is one."""
        if self.manager is not None:
            ray.kill(self.manager)
        self.manager = None

    def forget_dead_manager(self) -> bool:
        """Return whether the rollout manager is dead; one that does not answer is killed and counts as dead."""
        if self.manager is None:
            return False
        reference = self.manager.addresses.remote()
        try:
            if ray.wait([reference], timeout=ALIVE_TIMEOUT_SECONDS)[0]:
                ray.get(reference)
                return False
            ray.kill(self.manager)
        except RayActorError:
            pass
        self.manager = None
        return True

    def end_trainer(self) -> None:
        """End the training ranks."""
        if self.trainer is not None:
            self.trainer.shutdown()

    def dispose_manager(self) -> None:
        """Let the rollout manager stop what it started, then end it."""
        if self.manager is not None:
            ray.wait([self.manager.dispose.remote()], timeout=DISPOSE_TIMEOUT_SECONDS)
            ray.kill(self.manager)
