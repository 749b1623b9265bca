"""What a run owns, and how its driver calls the rollout manager.

`Run` is built in layers, each on the one before: this one, the weights that serve (`slime.ray.run_weights`), start and
restart (`slime.ray.run_start`), and the control loops' view (`slime.ray.run`).
"""

from __future__ import annotations

import contextlib
from typing import Any

from groundwork.process import StopRequested
from slime.args import Arguments
from slime.ray.fuses import Fuses
from slime.ray.gpu_alternation import GpuAlternation
from slime.ray.reports import Reports
from slime.ray.restarts import Restarts
from slime.ray.rollbacks import Rollbacks
from slime.ray.run_processes import RunProcesses
from slime.ray.run_state import Phase, Progress, RunLife
from slime.rollout.data_source import Story


class RunCore:
    """Owned by the driver's main thread."""

    def __init__(self, args: Arguments, *, collects: bool = True) -> None:
        """Start nothing yet.

        Args:
            args: of the command line.
            collects: whether the loop asks for rollouts; a mere evaluation does not.
        """
        self.args = args
        self._collects = collects
        self.stop = StopRequested()
        self.weight_version = ""
        self.story = Story()
        self._life = RunLife()
        self._progress = Progress()
        self._processes = RunProcesses()
        self._resources = contextlib.ExitStack()
        self._restarts = Restarts(None, 0, trains=False)
        self._reports = Reports(args)
        self._alternation = GpuAlternation(args, self._ask)
        self._fuses = Fuses(args)
        self._rollbacks = Rollbacks(args)

    @property
    def start_rollout_id(self) -> int:
        """First rollout of the loop."""
        return self._progress.start

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Call the rollout manager; raise ManagerLostError if it has died, Stopped on a signal."""
        return self._value(getattr(self._processes.manager, method).remote(*arguments))

    def _value(self, reference: Any) -> Any:
        """Return the value of a reference; react to a signal unless the run is already ending."""
        return self._processes.value(reference, None if self._life.phase is Phase.ENDING else self.stop)
