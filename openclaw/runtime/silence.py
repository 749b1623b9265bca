"""How to tell from outside that a process is frozen, and what to keep of it before it is ended.

Guarantees: a process counts as frozen only after `MIN_MISSES` requests in a row without any answer, over the whole
bound. Time during which the watcher itself stood still (a suspended machine, a starved thread) does not count.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

MIN_MISSES = 3
LOOKS_PER_BOUND = 10
WAITS_PER_BOUND = 4
LATE = 2.0
"""A watcher that comes this many times later than it meant to stood still itself."""
STACK_SECONDS = 2.0
MAX_NAMED = 20
STOPPED = "T"


class Silence:
    """Counts the silence of one process; used from one thread."""

    def __init__(self, bound: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Count up to ``bound`` seconds."""
        self.bound = bound
        self.pause = bound / LOOKS_PER_BOUND
        """Seconds between two looks."""
        self.patience = bound / WAITS_PER_BOUND
        """Seconds that a look waits for an answer."""
        self.seconds = 0.0
        self._misses = 0
        self._clock = clock
        self._last = clock()

    @property
    def due(self) -> bool:
        """Whether it is time for the next look."""
        return self._clock() - self._last >= self.pause

    def look(self, answers: Callable[[], bool]) -> bool:
        """Ask once, and return whether the process is frozen."""
        answered = answers()
        now = self._clock()
        gap, self._last = now - self._last, now
        meant = self.pause + self.patience
        if answered or gap > LATE * meant:
            self.seconds, self._misses = 0.0, 0
        else:
            self.seconds, self._misses = self.seconds + min(gap, meant), self._misses + 1
        return self.seconds >= self.bound and self._misses >= MIN_MISSES


def write_stack(pid: int, log_path: Path) -> None:
    """Let a process write its Python stacks to its log, and wait until it has; see `openclaw.runtime.__main__`.

    A process that a signal has stopped cannot: its log stays as it is.
    """
    before = _size(log_path)
    try:
        os.kill(pid, signal.SIGUSR1)
    except ProcessLookupError:
        return
    deadline = time.monotonic() + STACK_SECONDS
    while _size(log_path) == before and time.monotonic() < deadline and not is_stopped(pid):
        time.sleep(0.02)
    time.sleep(0.05)  # the other threads' stacks follow


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped the process (SIGSTOP, a debugger)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == STOPPED
    except (OSError, IndexError):
        return False


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
