"""What can go wrong with the ledger, by name; `ledger_error` names what SQLite reports."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from openclaw.exceptions import OpenClawError

PRIMARY_CODE = 0xFF


class LedgerError(OpenClawError):
    """Base of everything the ledger raises about its contents."""


class LedgerVersionError(LedgerError):
    """The file was written by a newer program."""


class LedgerUnavailableError(LedgerError):
    """The file cannot be read or written now (disk full, held by another process, not writable); nothing was changed."""


class LedgerDamagedError(LedgerError):
    """The file is not a whole database any more."""


class UnknownRecordError(LedgerError):
    """A turn, sample or session id that the ledger does not hold."""


class TransitionError(LedgerError):
    """A state change that is not in the tables of `openclaw.ledger.states`."""


class FeedbackArrivedError(LedgerError):
    """A verdict came too late: more feedback counts than it has seen."""


_UNAVAILABLE = {
    sqlite3.SQLITE_FULL: "the disk is full; free space there, writing goes on by itself",
    sqlite3.SQLITE_IOERR: "the disk refused a read or write; look at free space, quota and the kernel's log",
    sqlite3.SQLITE_BUSY: "another process holds the file for too long; `fuser FILE` shows which",
    sqlite3.SQLITE_LOCKED: "another connection holds the file for too long",
    sqlite3.SQLITE_READONLY: "the file cannot be written; give this user write access to it and its folder",
    sqlite3.SQLITE_PERM: "the file cannot be opened; give this user access to it",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; give this user write access to its folder",
}
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def ledger_error(error: sqlite3.Error, path: Path) -> LedgerError | None:
    """Return what an error of SQLite means for the person who runs the program; None for a defect of this program."""
    primary = getattr(error, "sqlite_errorcode", 0) & PRIMARY_CODE
    if primary in _DAMAGED:
        return damaged(path, str(error))
    if primary in _UNAVAILABLE:
        return LedgerUnavailableError(f"ledger {path}: {_UNAVAILABLE[primary]} ({error})")
    return None


def damaged(path: Path, finding: str) -> LedgerDamagedError:
    """Return the error about a damaged file, with what to type."""
    return LedgerDamagedError(
        f"ledger {path} is damaged ({finding}); keep what can be read with: "
        f"python -m openclaw.inspect {path} salvage {path}.salvaged"
    )
