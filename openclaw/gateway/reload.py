"""Reloads the keys file and the certificate when they change.

Guarantees: a change is noticed within `POLL_SECONDS`. If the new file is unusable, the previous contents remain valid;
the error is logged and counted once. Owns the task that watches the files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from groundwork.exceptions import ConfigError
from openclaw.gateway.metrics import GatewayMetrics

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
Stamp = tuple[int, int, int] | None


class Reloader:
    """Calls a function when one of its files changes; `now` calls all functions."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._watched: list[tuple[Sequence[Path], Callable[[], None]]] = []
        self._stamps: dict[Path, Stamp] = {}

    def watch(self, paths: Sequence[Path], read: Callable[[], None]) -> None:
        """Register ``read`` for changes of ``paths``."""
        self._watched.append((paths, read))
        self._stamps.update({path: _stamp(path) for path in paths})

    def now(self) -> None:
        """Read everything again."""
        for paths, read in self._watched:
            self._read(paths, read)

    async def run(self) -> None:
        """Watch the files in an endless loop."""
        while self._watched:
            await asyncio.sleep(POLL_SECONDS)
            for paths, read in self._watched:
                if any(_stamp(path) != self._stamps[path] for path in paths):
                    self._read(paths, read)

    def _read(self, paths: Sequence[Path], read: Callable[[], None]) -> None:
        self._stamps.update({path: _stamp(path) for path in paths})
        names = ", ".join(map(str, paths))
        try:
            read()
        except (ConfigError, OSError) as error:
            self._metrics.reload_failures.inc()
            logger.error("%s changed but is unusable; the previous contents remain valid: %s", names, error)
        else:
            logger.info("reloaded %s", names)


def _stamp(path: Path) -> Stamp:
    """Return a value that changes with the file; None if it is missing."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
