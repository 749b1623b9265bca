"""For how long requests waited for an engine that was away.

Guarantee: seconds in which several requests wait count once.
"""

from __future__ import annotations

from collections.abc import Callable


class AwayTime:
    """The clock of one engine, or of a router in front of several."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start at 0; ``clock``: monotonic seconds."""
        self._clock = clock
        self._total = self._since = 0.0
        self._waiting: set[str] = set()

    @property
    def seconds(self) -> float:
        """Seconds since the start in which at least one request waited, up to now."""
        return self._total + (self._clock() - self._since if self._waiting else 0.0)

    def begin(self, rid: str) -> None:
        """Count from now on, unless the request of this name waits already."""
        if not self._waiting:
            self._since = self._clock()
        self._waiting.add(rid)

    def end(self, rid: str) -> None:
        """Count no more for the request; a no-op if it does not wait."""
        if rid in self._waiting:
            self._waiting.remove(rid)
            if not self._waiting:
                self._total += self._clock() - self._since
