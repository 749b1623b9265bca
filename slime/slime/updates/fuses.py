"""The driver's fuses: what blows before a step, the pause that follows, and who is told.

Guarantees: the step that blew a fuse is not taken, so the trainer keeps the weights that serve, and an engine that
restarts during the pause gets these. The pause is on disk before anything else happens, and outlives every process
(`groundwork.paused`). Meanwhile the run serves and collects.
"""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

from groundwork.paused import Paused, pause, paused, resume
from slime.args import Arguments
from slime.observability.metric_utils import STEPS
from slime.utils.fuses import OF_THE_LOSS, Blown, blown, read_fuse
from slime.utils.metric_names import HELD, RECENT_ENTROPY, STEPS_OF_ENTROPY
from slime.utils.misc import say

logger = logging.getLogger(__name__)

ENTROPY = f"{OF_THE_LOSS}entropy_loss"
HOW_TO_GO_ON = "the last good weights keep serving and samples are kept; to go on: openclaw-rl resume"


class Fuses:
    """The fuses of a run and its pause. Owned by the driver."""

    def __init__(self, args: Arguments) -> None:
        self._args = args
        self._unseen = {fuse.metric for fuse in map(read_fuse, args.fuses or ())} - {RECENT_ENTROPY}
        self._entropies: deque[float] = deque(maxlen=STEPS_OF_ENTROPY)

    def at_start(self) -> None:
        """Forget the pause of an earlier run in the folder, or one that ``--resume-training`` ends; tell of any other."""
        if not self._args.resume or self._args.resume_training:
            resume(self._args.run_dir)
        if note := self.paused():
            say(f"{note}; {self._how()}")

    def recent(self) -> dict[str, float]:
        """Return `RECENT_ENTROPY`; empty until enough steps were taken since the start or the last pause.

        One batch says little: replies that only call a tool are certain in a healthy policy too.
        """
        if len(self._entropies) < STEPS_OF_ENTROPY:
            return {}
        return {RECENT_ENTROPY: statistics.fmean(self._entropies)}

    def of_batch(self, metrics: Mapping[str, Any]) -> Blown | None:
        """Return what a batch's metrics blow, before the trainer gets it."""
        return blown(self._args.fuses, {name: value for name, value in metrics.items() if not _of_the_loss(name)})

    def of_steps(self, metrics: Mapping[str, Any], batch: Mapping[str, Any]) -> Blown | None:
        """Return what held back the trainer's step, or None if it was taken; name fuses whose metric does not exist."""
        self._entropies.extend(step[ENTROPY] for step in metrics.get(STEPS, []) if ENTROPY in step)
        for step in metrics.get(STEPS, []):
            if step.get(f"{OF_THE_LOSS}{HELD}"):
                return blown(self._args.fuses, step)
        results = {*metrics, *batch, *(name for step in metrics.get(STEPS, []) for name in step)}
        for name in sorted(self._unseen - results if metrics else ()):
            say(f"warning: --fuses looks at {name}, which neither the batch nor the loss reports")
        self._unseen = set()
        return None

    def pause(self, rollout_id: int, cause: Blown) -> None:
        """Pause training after ``rollout_id``."""
        self._entropies.clear()
        note = pause(self._args.run_dir, rollout_id, str(cause))
        logger.error("%s; %s", note, self._how())
        say(f"{note}; {self._how()}")

    def paused(self) -> Paused | None:
        """Return why training is paused, or None."""
        return paused(self._args.run_dir) if self._args.run_dir else None

    def _how(self) -> str:
        return f"{HOW_TO_GO_ON} {self._args.run_dir}"


def _of_the_loss(name: str) -> bool:
    return name.startswith(OF_THE_LOSS)
