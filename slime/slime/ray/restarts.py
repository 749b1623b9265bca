"""Restart a run after it lost a training rank, the rollout manager or a machine.

Guarantees: batches that no checkpoint contains yet are kept, so a trainer that returns to the checkpoint trains on the
same samples, and neither the data source nor its leases go back. A batch whose steps were not taken is not trained again once
the data source knows, because its samples are the data source's again. Only losing the rollout manager loses these batches;
then the data source goes back with the trainer. Restarts between two checkpoints are bounded. Without ``--save``
nothing is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.exceptions import RayActorError

from groundwork.checkpoint_names import LATEST
from slime.args import Arguments
from slime.exceptions import LostError, TrainerError
from slime.updates.update import Update

_ERROR = re.compile(r"[\w.]*(Error|Exception|Exit|Interrupt): ")


class Restarts:
    """Owns the batch references since the last checkpoint, and the number of restarts since."""

    def __init__(self) -> None:
        """Allow none, as in a run without training, which has nothing to continue from."""
        self._trains = False
        self._save: str | None = None
        self._allowed = self._count = 0
        self._batches: dict[int, Any] = {}
        self._without: dict[int, Update] = {}

    def allow(self, save: str | None, count: int) -> None:
        """Allow ``count`` restarts between two checkpoints of the root ``save``; none without it."""
        self._trains, self._save, self._allowed = True, save, count if save else 0

    def batch(self, rollout_id: int, collect: Callable[[], Any]) -> Any:
        """Return the kept reference of a batch, else call ``collect`` and keep its result."""
        if not self._allowed:
            return collect()
        if rollout_id not in self._batches:
            self._batches[rollout_id] = collect()
        return self._batches[rollout_id]

    def not_trained(self, update: Update) -> None:
        """Record that the data source knows that this batch is not trained."""
        self._without[update.rollout_id] = update

    def outcome(self, rollout_id: int) -> Update | None:
        """Return what became of a batch without steps, so that it is not trained again; None of any other."""
        return self._without.get(rollout_id)

    def saved(self, rollout_id: int) -> None:
        """Record that a checkpoint contains the steps up to ``rollout_id``."""
        self._batches = {number: batch for number, batch in self._batches.items() if number > rollout_id}
        self._without = {number: outcome for number, outcome in self._without.items() if number > rollout_id}
        self._count = 0

    def batches_lost(self) -> None:
        """Record that the rollout manager and its batches are gone; the data source goes back, and learns their fate again."""
        self._batches, self._without = {}, {}

    def spend(self, lost: LostError) -> str:
        """Count a restart and return a line about it.

        Raises:
            TrainerError: there is nothing to continue from, or too many restarts were made.
        """
        what = first_line(lost)
        if not self._trains:
            raise TrainerError(f"{what} Nothing was trained yet: start the run again") from lost
        if not self._save:
            raise TrainerError(
                f"{what} There is no checkpoint to continue from: add --save FOLDER --save-interval N"
            ) from lost
        if self._count >= self._allowed:
            tried = (
                f"after {self._count} restarts without a checkpoint in between"
                if self._count
                else "and restarts are off"
            )
            raise TrainerError(
                f"{what} The run ends {tried} (--max-trainer-restarts {self._allowed}); continue it with --resume"
            ) from lost
        self._count += 1
        return f"{what} Continuing from the last checkpoint, restart {self._count} of {self._allowed}"

    def arguments(self, args: Arguments) -> Arguments:
        """Return the arguments for a restart: those of a resumed run if there is a checkpoint, else the run's own."""
        if not self._save or not Path(self._save, LATEST).is_file():
            return args
        return args.changed(resume=True, load=args.save, start_rollout_id=None)


def death_line(what: str, error: RayActorError) -> str:
    """Return ``what`` and why an actor died; for an error in its constructor, the line that names the error."""
    if not error.actor_init_failed:
        return f"{what}: {error}"
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{what} at its start: {next(filter(_ERROR.match, reversed(lines)), lines[-1])}"


def raised_itself(lost: LostError) -> bool:
    """Return whether an actor's own constructor raised, which would happen again after a restart."""
    return isinstance(lost.__cause__, RayActorError) and lost.__cause__.actor_init_failed


def first_line(error: BaseException) -> str:
    """Return the first line of a message, as a sentence."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip()
    return line if line.endswith(".") else f"{line}."
