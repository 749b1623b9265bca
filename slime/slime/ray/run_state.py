"""Where a run is: its phase with the transitions that exist, and which rollouts are trained, saved and reported.

Guarantees: a phase changes along `TRANSITIONS` only. `RunLife` and `Progress` start no process and ask none; `Run` owns one
of each.
"""

from __future__ import annotations

import time
from enum import Enum

from slime.exceptions import LostError
from slime.ray.report import Trained


class Phase(Enum):
    """What a run does as a whole."""

    NEW = "nothing was started"
    STARTING = "processes come up and agree on a rollout"
    UP = "the loop works"
    LOST = "a process or a machine is gone, and the run starts again"
    ENDING = "the last checkpoint is written, then everything is ended"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.NEW: frozenset({Phase.STARTING, Phase.ENDING}),
    Phase.STARTING: frozenset({Phase.UP, Phase.LOST, Phase.ENDING}),
    Phase.UP: frozenset({Phase.LOST, Phase.ENDING}),
    Phase.LOST: frozenset({Phase.STARTING, Phase.ENDING}),
    Phase.ENDING: frozenset(),
}


class RunLife:
    """The phase of a run; ``lost`` is what is gone in `Phase.LOST`, else None."""

    def __init__(self, phase: Phase = Phase.NEW) -> None:
        self.phase = phase
        self.lost: LostError | None = None

    def to(self, phase: Phase) -> None:
        """Go on to another phase.

        Raises:
            RuntimeError: when `TRANSITIONS` has no such step.
        """
        if phase not in TRANSITIONS[self.phase]:
            raise RuntimeError(f"a run does not go from {self.phase.name} to {phase.name}")
        self.phase, self.lost = phase, None

    def lose(self, lost: LostError) -> None:
        """Go to `Phase.LOST`."""
        self.to(Phase.LOST)
        self.lost = lost


class Progress:
    """The rollouts of a run: each is trained, then saved if that is due, then reported.

    Attributes:
        start: the first rollout of the loop, the one after the restored checkpoint.
        per_epoch: rollouts of an epoch, None unless ``--num-epoch`` asks for them.
        trained: the last rollout trained since the restored checkpoint, or None.
        saved: the last rollout that a checkpoint has; -1 without one.
        untold: what was trained and is not reported yet, or None.
        free_since: when the trainer last had nothing to do, seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        self.start = 0
        self.per_epoch: int | None = None
        self.trained: int | None = None
        self.saved = -1
        self.untold: Trained | None = None
        self.free_since = time.monotonic()

    @property
    def unsaved(self) -> bool:
        """Whether steps were taken that no checkpoint has."""
        return self.trained is not None and self.trained != self.saved

    def stepped(self, trained: Trained) -> None:
        """The steps of a rollout were taken."""
        self.trained, self.untold = trained.rollout_id, trained

    def told(self) -> float:
        """The last rollout is reported; return the time from which the trainer is free."""
        self.untold, self.free_since = None, time.monotonic()
        return self.free_since

    def went_back(self) -> None:
        """What was trained since the checkpoint went with the process that trained it."""
        self.trained = None

    def untold_before_start(self) -> Trained | None:
        """Return what the restored checkpoint has and nobody reported, because the loss came in between."""
        return self.untold if self.untold is not None and self.untold.rollout_id < self.start else None
