"""Files that are read again when they change: the keys, and the certificate.

Guarantees: a change is noticed within `POLL_SECONDS`; what cannot be read leaves what was in force before, with one error
in the log and in the counter. Owns the task that looks at the files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from openclaw.exceptions import ConfigError
from openclaw.gateway.metrics import GatewayMetrics

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
Stamp = tuple[int, int, int] | None


class Reloader:
    """Calls a function when one of its files changes; `now` calls all of them."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._watched: list[tuple[Sequence[Path], Callable[[], None]]] = []
        self._stamps: dict[Path, Stamp] = {}

    def watch(self, paths: Sequence[Path], read: Callable[[], None]) -> None:
        """Call ``read`` when one of ``paths`` changes."""
        self._watched.append((paths, read))
        self._stamps.update({path: _stamp(path) for path in paths})

    def now(self) -> None:
        """Read everything again."""
        for paths, read in self._watched:
            self._read(paths, read)

    async def run(self) -> None:
        """Look at the files, for ever."""
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
            logger.error("%s changed and cannot be used; what was in force stays: %s", names, error)
        else:
            logger.info("%s: read again", names)


def _stamp(path: Path) -> Stamp:
    """Return what changes when a file does; None when it is gone."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
