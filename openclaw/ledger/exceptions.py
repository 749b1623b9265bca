"""The ledger's errors; `ledger_error` converts SQLite's."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from openclaw.exceptions import OpenClawError

PRIMARY_CODE = 0xFF


class LedgerError(OpenClawError):
    """Base of the ledger's errors."""


class LedgerVersionError(LedgerError):
    """A newer version wrote the file."""


class LedgerUnavailableError(LedgerError):
    """The file is not readable or writable now (disk full, locked, read-only); nothing was changed."""


class LedgerFullError(LedgerUnavailableError):
    """The disk is full; nothing was changed."""


class LedgerDamagedError(LedgerError):
    """The file is a damaged database."""


class UnknownRecordError(LedgerError):
    """The ledger has no turn, sample or session with this id."""


class TransitionError(LedgerError):
    """A state change that `openclaw.ledger.schema` does not list."""


class EpisodeConflictError(LedgerError):
    """A request that contradicts the state of an episode or of its group; the message says what to do."""


class OpenEpisodesError(EpisodeConflictError):
    """An owner has as many open episodes as it may."""


class UnknownTurnError(LedgerError):
    """Scores of an episode name a turn that it does not have; the message says which."""


class FeedbackArrivedError(LedgerError):
    """New feedback or another next state arrived while its turn was judged, so the verdict is outdated."""


_UNAVAILABLE = {
    sqlite3.SQLITE_FULL: "the disk is full; free some space, and writing resumes by itself",
    sqlite3.SQLITE_IOERR: "the disk refused a read or write; look at free space, quota and the kernel's log",
    sqlite3.SQLITE_BUSY: "another process locks the file for too long; `fuser FILE` shows which",
    sqlite3.SQLITE_LOCKED: "another connection locks the file for too long",
    sqlite3.SQLITE_READONLY: "the file cannot be written; give this user write access to it and its folder",
    sqlite3.SQLITE_PERM: "the file cannot be opened; give this user access to it",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; give this user write access to its folder",
}
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def ledger_error(error: sqlite3.Error, path: Path) -> LedgerError | None:
    """Return the ledger error for an SQLite error; None for a bug in this program."""
    primary = getattr(error, "sqlite_errorcode", 0) & PRIMARY_CODE
    if primary in _DAMAGED:
        return damaged(path, str(error))
    if primary in _UNAVAILABLE:
        kind = LedgerFullError if primary == sqlite3.SQLITE_FULL else LedgerUnavailableError
        return kind(f"ledger {path}: {_UNAVAILABLE[primary]} ({error})")
    return None


def damaged(path: Path, finding: str) -> LedgerDamagedError:
    """Return the error about a damaged file, with what to type."""
    return LedgerDamagedError(
        f"ledger {path} is damaged ({finding}); keep what can be read with: "
        f"openclaw-rl inspect {path} salvage {path}.salvaged"
    )
