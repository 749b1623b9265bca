"""What the gateway asks of the run about one person's own adapter (`openclaw.gateway.adapters`).

Types only: commands that implement them load no server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from openclaw.ledger.sessions import Forgotten


class NotPossibleError(Exception):
    """A person's adapter cannot do what is asked; the text says why, without a path or another person."""


class Export(NamedTuple):
    """A version as a tar of PEFT's two files.

    Attributes:
        version: its number.
        sha256: of its weights' file, in hexadecimal digits.
        chunks: the tar's bytes; close it if it is not read to the end.
    """

    version: str
    sha256: str
    chunks: Iterator[bytes]


class OwnAdapters(Protocol):
    """The run's adapters of everybody. Methods block."""

    def versions(self, person: str) -> dict[str, Any]:
        """Return what `GET /v1/me/adapter` answers about a person's adapter."""
        ...

    def ask_rollback(self, person: str, version: str) -> None:
        """Let the run go back to a version of a person's adapter, "0" being the base; raise NotPossibleError."""
        ...

    def accept(self, person: str) -> int:
        """Accept what the gate refused by a person's opinions; return how many samples are ready again, or raise NotPossibleError."""
        ...

    def export(self, person: str) -> Export:
        """Return the version that serves a person; raise NotPossibleError."""
        ...

    def forget(self, person: str) -> tuple[Forgotten, bool]:
        """Delete all of a person from ledger and run; return what the ledger had, and whether there was an adapter."""
        ...
