"""State of a run: its phase with the allowed transitions, and which rollouts are trained, saved and reported.

Guarantees: a phase changes only along `TRANSITIONS`. `RunLife` and `Progress` neither start nor call a process; `Run`
owns one of each.
"""

from __future__ import annotations

import time
from enum import Enum

from slime.exceptions import LostError
from slime.ray.report import Trained


class Phase(Enum):
    """Phase of a run."""

    NEW = "nothing has started"
    STARTING = "processes start and agree on a rollout"
    UP = "the loop runs"
    LOST = "a process or a machine is gone, and the run restarts"
    ENDING = "the last checkpoint is written, then everything ends"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.NEW: frozenset({Phase.STARTING, Phase.ENDING}),
    Phase.STARTING: frozenset({Phase.UP, Phase.LOST, Phase.ENDING}),
    Phase.UP: frozenset({Phase.LOST, Phase.ENDING}),
    Phase.LOST: frozenset({Phase.STARTING, Phase.ENDING}),
    Phase.ENDING: frozenset(),
}


class RunLife:
    """The phase of a run; in `Phase.LOST`, ``lost`` is the error, else None."""

    def __init__(self, phase: Phase = Phase.NEW) -> None:
        self.phase = phase
        self.lost: LostError | None = None

    def to(self, phase: Phase) -> None:
        """Change to another phase.

        Raises:
            RuntimeError: `TRANSITIONS` does not allow the change.
        """
        if phase not in TRANSITIONS[self.phase]:
            raise RuntimeError(f"a run cannot change from {self.phase.name} to {phase.name}")
        self.phase, self.lost = phase, None

    def lose(self, lost: LostError) -> None:
        """Change to `Phase.LOST`."""
        self.to(Phase.LOST)
        self.lost = lost


class Progress:
    """Progress over rollouts: each is trained, then saved if due, then reported.

    Attributes:
        start: first rollout of the loop, after the restored checkpoint.
        per_epoch: rollouts per epoch; None without ``--num-epoch``.
        trained: last rollout trained since the restored checkpoint, or None.
        saved: last rollout in a checkpoint; -1 without one.
        untold: the trained rollout that is not reported yet, or None.
        free_since: when the trainer last became idle, in monotonic seconds.
        between: whether the trainer is on its way back to older weights, which are not those after ``trained``.
    """

    def __init__(self) -> None:
        self.start = 0
        self.per_epoch: int | None = None
        self.trained: int | None = None
        self.saved = -1
        self.untold: Trained | None = None
        self.free_since = time.monotonic()
        self.between = False

    @property
    def unsaved(self) -> bool:
        """Whether the trainer has steps that no checkpoint contains."""
        return self.trained is not None and self.trained != self.saved and not self.between

    @property
    def last(self) -> int:
        """The last rollout that was trained, in a checkpoint or not; -1 without one."""
        return self.start - 1 if self.trained is None else self.trained

    def stepped(self, trained: Trained) -> None:
        """Record that a rollout was trained."""
        self.trained, self.untold = trained.rollout_id, trained

    def told(self) -> float:
        """Record that the last rollout was reported; return the time since which the trainer is idle."""
        self.untold, self.free_since = None, time.monotonic()
        return self.free_since

    def went_back(self) -> None:
        """Record that training since the checkpoint was lost with its process."""
        self.trained, self.between = None, False

    def untold_before_start(self) -> Trained | None:
        """Return the rollout that the restored checkpoint contains but that a loss kept from being reported."""
        return self.untold if self.untold is not None and self.untold.rollout_id < self.start else None
