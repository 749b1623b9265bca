"""The driver's part of ``--canary-engine``: one engine gets the candidate before the others, and goes back if it is refused.

Guarantees: the other engines keep the weights that serve until the gate has accepted the candidate. An engine that dies meanwhile
restarts with these weights, as all engines then have them, and the plugin learns of it. No request waits for a decision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import ray

from slime.exceptions import LostError, TrainerError
from slime.ray.pushes import PUSH_ATTEMPTS
from slime.ray.report import say
from slime.ray.run_processes import RunProcesses

logger = logging.getLogger(__name__)

POLL_SECONDS = 2.0


class CanaryPush:
    """Owned by the driver's gate."""

    def __init__(self, processes: RunProcesses, look_after: Callable[[], None]) -> None:
        """``look_after``: called every few seconds; restarts engines, and raises on a signal or a loss."""
        self._processes = processes
        self._look_after = look_after
        self._out = False

    def begin(self) -> None:
        """Give the candidate to the last engine; attempts again after an engine died of it or beside it."""
        for attempt in range(1, PUSH_ATTEMPTS + 1):
            while not self._wait("set_canary_apart"):
                self._look_after()
            self._out = True
            try:
                self._trainer().push_candidate()
            except LostError:
                raise
            except TrainerError:
                if attempt == PUSH_ATTEMPTS or not self._recovered():
                    raise
                logger.exception("the candidate did not reach its engine (attempt %d); sending it again", attempt)
            else:
                say("one engine has the candidate")
                return self._wait("canary_has_candidate")

    def accepted(self) -> None:
        """Let the router use the engine; the next push brings the others what it has."""
        if self._out:
            self._rejoin()

    def refused(self) -> None:
        """Let the engine go back to what the others have; the candidate's steps are undone."""
        if not self._out:
            return
        try:
            self._trainer().take_candidate_back()
        except LostError:
            raise
        except TrainerError:
            if not self._recovered():
                raise
            logger.exception("the engine with the refused candidate failed; it restarted with the weights that serve")
        self._rejoin()

    def _rejoin(self) -> None:
        # Ignore signals: a run that stops between the decision and its count would save the steps under an earlier rollout.
        self._out = False
        self._processes.value(self._processes.manager.canary_rejoins.remote(), None)

    def _recovered(self) -> bool:
        """Restart dead engines; return whether all engines got the weights that serve."""
        self._look_after()
        return self._wait("canary_is_over")

    def _wait(self, method: str) -> Any:
        """Call the rollout manager and look after the run until it answers."""
        reference = getattr(self._processes.manager, method).remote()
        while not ray.wait([reference], timeout=POLL_SECONDS)[0]:
            self._look_after()
        return self._processes.value(reference, None)

    def _trainer(self) -> Any:
        assert self._processes.trainer is not None
        return self._processes.trainer
