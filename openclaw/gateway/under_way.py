"""The requests under way, in a small file that outlives the process: who watches a frozen process reads their names.

Guarantees: `InFlightRegistry.begin` and `InFlightRegistry.end` only write memory, a few microseconds each, and never fail. `read` works while
the writer is frozen and after it was killed. The file has no contents of a request and only its owner reads it; `close`
deletes it. One process writes a file; any may read. The workers of a gateway have files of their own beside the leading
process's (`of_worker`), and whoever reads that one reads theirs.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import struct
import time
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

SLOT = struct.Struct("<d129p65p65p")  # when it started, request id, name of the key, route
FREE = bytes(8)
SLOT_BYTES = 272
SLOTS = 1024
NOT_SHOWN = re.compile(r"[^ -~]")
WHOLE = frozenset({"/v1/chat/completions"})
NONE = -1
"""What `begin` returns when all slots are taken."""


@dataclass(frozen=True)
class InFlightRequest:
    """A request that has begun and not ended; ``started`` is in seconds since the epoch."""

    id: str
    key: str
    route: str
    started: float

    def line(self, now: float) -> str:
        """Return the request for a log."""
        return f"request={self.id} key={self.key} {self.route} for {max(0.0, now - self.started):.1f} s"


class InFlightRegistry:
    """Writes the requests of this process."""

    def __init__(self, path: Path | None = None) -> None:
        """Create the file, empty; without ``path``, or if that fails, only memory."""
        self._path = path
        try:
            self._memory = _mapped(path) if path else mmap.mmap(-1, SLOTS * SLOT_BYTES)
        except OSError as error:
            logger.warning("requests under way will not be named after a crash: %s: %s", path, error)
            self._path, self._memory = None, mmap.mmap(-1, SLOTS * SLOT_BYTES)
        self._free = list(range(SLOTS - 1, -1, -1))

    def begin(self, id: str, key: str, method: str, path: str) -> int:
        """Enter a request and return its slot. Of a path with ids only the first two parts are kept."""
        if not self._free:
            return NONE
        slot = self._free.pop()
        route = f"{method} {path}" if path in WHOLE else f"{method} {'/'.join(path.split('/', 4)[:3])}"
        SLOT.pack_into(
            self._memory,
            slot * SLOT_BYTES,
            time.time(),
            id.encode("ascii", "replace"),
            key.encode("ascii", "replace"),
            route.encode("ascii", "replace"),
        )
        return slot

    def end(self, slot: int) -> None:
        """Free a slot."""
        if slot != NONE:
            start = slot * SLOT_BYTES
            self._memory[start : start + len(FREE)] = FREE
            self._free.append(slot)

    def close(self) -> None:
        """Delete the file."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def read(path: Path) -> list[InFlightRequest]:
    """Return the requests in a file and those of its workers, the oldest first; none if there is no such file."""
    in_flight_requests: list[InFlightRequest] = []
    for file in _files(path):
        try:
            data = file.read_bytes()
        except OSError:
            continue
        for offset in range(0, len(data) - SLOT_BYTES + 1, SLOT_BYTES):
            started, *names = SLOT.unpack_from(data, offset)
            if started > 0:
                id, key, route = (NOT_SHOWN.sub("?", name.decode("ascii", "replace")) for name in names)
                in_flight_requests.append(InFlightRequest(id, key, route, started))
    return sorted(in_flight_requests, key=lambda request: request.started)


def of_worker(path: Path, number: int) -> Path:
    """Return the file of one worker beside that of the leading process."""
    return path.with_name(f"{path.name}.{number}")


def delete(path: Path) -> None:
    """Delete a file and those of its workers."""
    for file in _files(path):
        file.unlink(missing_ok=True)


def _files(path: Path) -> list[Path]:
    return [path, *path.parent.glob(f"{path.name}.[0-9]*")]


def _mapped(path: Path) -> mmap.mmap:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, SLOTS * SLOT_BYTES)  # a full disk fails here, and not at a write
        return mmap.mmap(descriptor, SLOTS * SLOT_BYTES)
    finally:
        os.close(descriptor)
