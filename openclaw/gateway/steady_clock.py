"""How old something is by a clock that may jump: a wall clock, checked against the time that has really passed.

Guarantees: while this process lives, `SteadyClock.now` moves no faster than the machine's uptime, which counts time
asleep. So a wall clock that jumps ahead makes nothing old at once. The next process believes the wall clock again, so time in
which nobody ran counts in full.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

NOTICED_SECONDS = 60.0
"""Smaller steps of the wall clock are corrections."""


def uptime() -> float:
    """Return seconds since some moment, time asleep included where the system counts it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class SteadyClock:
    """A wall clock whose jumps are known; not for several threads."""

    def __init__(self, wall: Callable[[], float], passed: Callable[[], float] = uptime) -> None:
        """``wall``: seconds since the epoch; ``passed``: seconds since some moment."""
        self._wall = wall
        self._passed = passed
        self._first = self._last = wall() - passed()

    def now(self) -> float:
        """Return seconds since the epoch, without the wall clock's jumps ahead."""
        return min(self._wall(), self._first + self._passed())

    def jump(self) -> float:
        """Return the seconds by which the wall clock has jumped since the last call; 0 for small corrections."""
        found = self._wall() - self._passed() - self._last
        if abs(found) < NOTICED_SECONDS:
            return 0.0
        self._last += found
        logger.warning(
            "the machine's clock jumped by %+.0f s: episodes keep the time they had left, and until the next start "
            "OPENCLAW_RETENTION_DAYS counts the time that has passed",
            found,
        )
        return found
