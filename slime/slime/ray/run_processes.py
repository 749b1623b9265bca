"""The processes that a run owns: what placement reserved for them, the rollout manager, and the trainer.

Guarantees: a question to a rollout manager that has died, and one on a machine that is lost, ends in a `LostError`; `end`
leaves none of the processes behind. `Run` makes the manager and the trainer, because it decides when.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from slime.exceptions import ManagerLostError
from slime.ray.nodes import get_watching
from slime.ray.placement import ReservedPlacement
from slime.ray.restarts import death_line
from slime.ray.trainer import Trainer
from slime.utils.process import StopRequested

DISPOSE_TIMEOUT_SECONDS = 60.0
ALIVE_TIMEOUT_SECONDS = 30.0


class RunProcesses:
    """Owned by `Run`.

    Attributes:
        reserved: None before the placement.
        manager: the rollout manager's actor, or None.
        loaded: whether the manager's data source is at the trainer's rollout.
        trainer: None before the start, and in a run without training.
    """

    def __init__(self) -> None:
        self.reserved: ReservedPlacement | None = None
        self.manager: Any = None
        self.loaded = False
        self.trainer: Trainer | None = None

    def nodes(self) -> dict[str, str]:
        """The machines to watch; the driver ends with its own."""
        return self.reserved.other_nodes if self.reserved else {}

    def value(self, reference: Any, stop: StopRequested | None) -> Any:
        """The value of a reference.

        Raises:
            ManagerLostError: when the rollout manager has died.
            NodeLostError: when a machine is lost meanwhile.
            Stopped: on a signal, unless the value is there.
        """
        try:
            return get_watching(reference, self.nodes(), stop)
        except RayActorError as error:
            if isinstance(error, RayTaskError):  # it lives, and was told of another one's death
                raise
            raise ManagerLostError(death_line("the rollout manager died", error)) from error

    def kill_manager(self) -> None:
        """End the rollout manager at once, if there is one."""
        if self.manager is not None:
            ray.kill(self.manager)
        self.manager = None

    def forget_dead_manager(self) -> bool:
        """Return whether the rollout manager had died; one that does not answer is ended and counts as dead."""
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
        """Let the rollout manager end what it started, then end it."""
        if self.manager is not None:
            ray.wait([self.manager.dispose.remote()], timeout=DISPOSE_TIMEOUT_SECONDS)
            ray.kill(self.manager)
