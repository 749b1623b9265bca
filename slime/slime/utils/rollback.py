"""The note that a run shall go back to an earlier weight version: ``rollback.json`` in the run's folder.

Guarantees: the note is there until the driver has saved what it went back to, or has said why it cannot, whichever process ends
meanwhile. Anybody who knows the folder can write and read it. Imports only the standard library.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NamedTuple

from groundwork.private_files import write_note

NAME = "rollback.json"


class Rollback(NamedTuple):
    """The weight version to go back to, and since when it is asked for (seconds since the epoch)."""

    version: str
    since: float


def ask_rollback(run_dir: str | Path, version: str | int) -> Rollback:
    """Write the note, in place of an earlier one, and return it; the run acts within seconds."""
    note = Rollback(str(version), time.time())
    write_note(Path(run_dir, NAME), note._asdict())
    return note


def asked_rollback(run_dir: str | Path) -> Rollback | None:
    """Return the note; None if nothing is asked for. An unreadable note asks for a version that does not exist."""
    try:
        note = Rollback(**json.loads(Path(run_dir, NAME).read_text(encoding="utf-8")))
        return note._replace(version=str(note.version))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        return Rollback(f"of {Path(run_dir, NAME)}, which is unreadable ({error})", 0.0)


def forget_rollback(run_dir: str | Path, done: Rollback | None = None) -> None:
    """Remove the note; with ``done`` only if it is still this one, because somebody may have asked again meanwhile."""
    if done is None or asked_rollback(run_dir) == done:
        Path(run_dir, NAME).unlink(missing_ok=True)
