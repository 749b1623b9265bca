"""The share of conversations that an engine with a candidate gets before the others: the gate's note, and who is drawn.

The gate writes the note into the run's folder, and the gateway reads it: ``canary.json`` while the share is open. What the engine
fails to answer goes the other way: a line per failure in ``canary_failures.txt``.

Guarantees: whether a conversation is drawn depends on its routing key and the candidate alone, so all its turns meanwhile stay on one
engine. An unreadable note draws nobody. Imports only the standard library and `groundwork.private_files`.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from groundwork.private_files import private, write_note

NAME, FAILURES = "canary.json", "canary_failures.txt"
_SCALE = 1 << 64


class Share(NamedTuple):
    """The engine's URL, the candidate's weight version, and the share of conversations that it gets."""

    url: str
    version: str
    share: float

    def draws(self, routing_key: str) -> bool:
        """Return whether a conversation goes to the engine."""
        digest = hashlib.blake2b(f"{self.version} {routing_key}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) < self.share * _SCALE


def open_share(run_dir: str | Path, share: Share) -> None:
    """Let the gateway send the engine its share, and forget earlier failures."""
    Path(run_dir, FAILURES).unlink(missing_ok=True)
    write_note(Path(run_dir, NAME), share._asdict())


def close_share(run_dir: str | Path) -> None:
    """Send the engine no further request; those that it has go on."""
    Path(run_dir, NAME).unlink(missing_ok=True)


def failures(run_dir: str | Path) -> list[str]:
    """Return why requests left the engine, since its share was opened."""
    try:
        return Path(run_dir, FAILURES).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


class ShareReader:
    """Reads the note for each request; reads the file again only when it has changed."""

    def __init__(self, run_dir: str | Path) -> None:
        self._note, self._failures = Path(run_dir, NAME), Path(run_dir, FAILURES)
        self._seen: tuple[int, int] | None = None
        self._share: Share | None = None

    def drawn(self, routing_key: str) -> str | None:
        """Return the URL of the engine if the conversation goes there, else None."""
        share = self._current()
        return share.url if share is not None and share.draws(routing_key) else None

    def failed(self, why: str) -> None:
        """Record that a request left the engine without its whole reply."""
        with open(self._failures, "a", encoding="utf-8", opener=private) as file:
            file.write(f"{' '.join(why.split())[:500]}\n")

    def _current(self) -> Share | None:
        try:
            stat = os.stat(self._note)
        except OSError:
            self._seen = self._share = None
            return None
        seen = stat.st_ino, stat.st_mtime_ns
        if seen != self._seen:
            self._seen, self._share = seen, _read(self._note)
        return self._share


def _read(path: Path) -> Share | None:
    try:
        return Share(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
