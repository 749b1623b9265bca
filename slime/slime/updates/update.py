"""One update of the policy: its states, and how far a run has come with its updates.

Guarantees: an update changes its state only along `TRANSITIONS`. Steps that a fuse held back or the gate undid reach neither
an engine nor a checkpoint that holds them: from `State.HELD` and `State.UNDONE` only a checkpoint without them follows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from slime.utils.fuses import Blown
from slime.utils.metric_names import RECENT_ENTROPY


class State(Enum):
    """Where an update is."""

    TRAINED = "the trainer has taken the steps"
    PROBED = "the gate's plugin compares the weights with those that serve"
    TRIED = "one engine has the weights before the others"
    ACCEPTED = "the weights may serve"
    PUSHED = "the engines have the weights"
    LIVE = "the data source knows that they serve"
    SAVED = "a checkpoint holds them"
    HELD = "a fuse held the steps back"
    UNDONE = "the gate refused the steps, and the trainer has the weights of before"
    EXCLUDED = "a checkpoint without the steps is written"
    RESTORED = "the trainer goes back to an earlier checkpoint on command"


_TABLE: dict[State, frozenset[State]] = {
    State.TRAINED: frozenset({State.PROBED, State.ACCEPTED}),
    State.PROBED: frozenset({State.TRIED, State.ACCEPTED, State.UNDONE}),
    State.TRIED: frozenset({State.PROBED, State.ACCEPTED, State.UNDONE}),
    State.ACCEPTED: frozenset({State.PUSHED, State.SAVED}),
    State.PUSHED: frozenset({State.LIVE, State.SAVED}),
    State.LIVE: frozenset({State.SAVED}),
    State.SAVED: frozenset({State.PUSHED}),  # a checkpoint that is due comes before the push
    State.HELD: frozenset({State.EXCLUDED}),
    State.UNDONE: frozenset({State.EXCLUDED}),
    State.EXCLUDED: frozenset(),
    State.RESTORED: frozenset({State.LIVE}),
}
TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(_TABLE)
"""The states that may follow each state. A loss of a rank or of the manager drops the update, whatever its state."""


@dataclass
class Update:
    """An update; `Updates` moves it on.

    Attributes:
        rollout_id: the rollout whose batch was trained; of a rollback the last one before it.
        metrics: of the batch and of the gate.
        steps: metrics of the steps.
        seconds: that the steps and the decision took.
        waited: seconds that the trainer waited for the batch.
        held: the fuse that held the steps back, or None.
        undone: why the gate undid the steps, or None.
        person: whose samples the batch has; None of several people's.
        own: whether the policy is this person's adapter.
        state: see `TRANSITIONS`.

    Example:
        >>> update = Update(rollout_id=7, metrics={}, steps={})
        >>> for state in (State.PROBED, State.ACCEPTED, State.PUSHED, State.LIVE):
        ...     update.to(state)
        >>> update.learned, update.may_be_saved
        (True, True)
        >>> update.to(State.UNDONE)
        Traceback (most recent call last):
        RuntimeError: update 7 cannot change from LIVE to UNDONE
    """

    rollout_id: int
    metrics: dict[str, Any]
    steps: dict[str, Any]
    seconds: float = 0.0
    waited: float = 0.0
    held: Blown | None = None
    undone: str | None = None
    person: str | None = None
    own: bool = False
    state: State = State.TRAINED

    def to(self, state: State) -> None:
        """Change to another state.

        Raises:
            RuntimeError: `TRANSITIONS` does not allow the change.
        """
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"update {self.rollout_id} cannot change from {self.state.name} to {state.name}")
        self.state = state

    @property
    def learned(self) -> bool:
        """Whether the trainer's weights are those after the steps."""
        return self.state not in (State.HELD, State.UNDONE, State.EXCLUDED)

    @property
    def pauses(self) -> bool:
        """Whether a fuse pauses everybody's training: the batch is several people's, or the fuse looks at others' steps, too."""
        if self.held is None:
            return False
        return self.person is None or (self.held.fuse.metric == RECENT_ENTROPY and not self.own)

    @property
    def may_be_saved(self) -> bool:
        """Whether the trainer's weights may become the newest checkpoint."""
        return bool(TRANSITIONS[self.state] & {State.SAVED, State.EXCLUDED}) or self.state is State.SAVED

    def saved(self) -> None:
        """Record that the newest checkpoint agrees with the update: it holds the steps, or none of those not taken."""
        if self.state not in (State.SAVED, State.EXCLUDED):
            self.to(State.SAVED if self.learned else State.EXCLUDED)


class Progress:
    """Progress over rollouts: each is trained, then saved if due, then reported.

    Attributes:
        start: first rollout of the loop, after the restored checkpoint.
        per_epoch: rollouts per epoch; None without ``--num-epoch``.
        current: the last update since the restored checkpoint, or None.
        trained: last rollout trained since then, or None.
        saved: last rollout in a checkpoint; -1 without one.
        untold: the update that is not reported yet, or None.
        free_since: when the trainer last became idle, in monotonic seconds.

    Example:
        >>> progress = Progress()
        >>> progress.stepped(update := Update(rollout_id=0, metrics={}, steps={}))
        >>> progress.last, progress.unsaved  # a gate or a fuse may still refuse it
        (0, False)
        >>> update.to(State.ACCEPTED)
        >>> progress.unsaved
        True
    """

    def __init__(self) -> None:
        self.start = 0
        self.per_epoch: int | None = None
        self.current: Update | None = None
        self.trained: int | None = None
        self.saved = -1
        self.untold: Update | None = None
        self.free_since = time.monotonic()

    @property
    def unsaved(self) -> bool:
        """Whether the trainer has steps that no checkpoint contains; not while it is on its way back to older weights."""
        current = self.current
        return self.trained not in (None, self.saved) and current is not None and current.may_be_saved

    @property
    def last(self) -> int:
        """The last rollout that was trained, in a checkpoint or not; -1 without one."""
        return self.start - 1 if self.trained is None else self.trained

    def stepped(self, update: Update) -> None:
        """Record that a rollout was trained."""
        self.current = self.untold = update
        self.trained = update.rollout_id

    def told(self) -> float:
        """Record that the last rollout was reported; return the time since which the trainer is idle."""
        self.untold, self.free_since = None, time.monotonic()
        return self.free_since

    def went_back(self) -> None:
        """Record that training since the checkpoint was lost with its process."""
        self.trained, self.current = None, None

    def untold_before_start(self) -> Update | None:
        """Return the update that the restored checkpoint agrees with but that a loss kept from being reported."""
        untold = self.untold
        if untold is None or untold.rollout_id >= self.start:
            return None
        untold.saved()
        return untold
