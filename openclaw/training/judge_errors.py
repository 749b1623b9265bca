"""Tells the driver's terminal why turns stay unjudged.

Guarantees: a new error is logged at the next look. The same error is repeated once a minute while turns stay pending for
it. A ledger that cannot be read is left to those who need it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from openclaw.ledger.exceptions import LedgerUnavailableError
from openclaw.ledger.store import Ledger

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
REPEAT_SECONDS = 60.0


class JudgeErrors:
    """Looks for the judge side's last error in the ledger, at most once a second."""

    def __init__(self, ledger: Ledger, log: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Create it; ``log`` is the file with the traceback."""
        self._ledger = ledger
        self._log = log
        self._clock = clock
        self._next_look = 0.0
        self._said = ""
        self._said_at = 0.0

    def look(self) -> None:
        """Log the last error if it is new, or was last logged a minute ago."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        try:
            judge_error = self._ledger.views.judge_error()
        except LedgerUnavailableError:
            return
        if judge_error is None:
            self._said = ""
        elif judge_error.error != self._said or now >= self._said_at + REPEAT_SECONDS:
            self._said, self._said_at = judge_error.error, now
            logger.warning("judge: %s; the traceback is in %s", judge_error, self._log)
