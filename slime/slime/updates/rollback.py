"""Going back to an earlier weight version on command: ``rollback.json`` in the run's folder asks for it, and the driver follows.

Guarantees: the note is there until the driver has saved what it went back to, or has said why it cannot, whichever process ends
meanwhile. So a run that loses a process, or starts again, goes back too; any other failure removes the note, so that it is not
met again at each start. A version that no checkpoint holds changes nothing and is told with one line. Anybody who knows the
folder can write and read the note.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from groundwork.private_files import write_note
from groundwork.process import Stopped
from slime.args import Arguments
from slime.checkpoints.versions import SavedVersion, newest_of_version, saved_versions
from slime.exceptions import LostError
from slime.utils.run_logs import say

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


@contextmanager
def due_rollback(args: Arguments, serving: str) -> Iterator[SavedVersion | None]:
    """Run the block with the checkpoint to go back to, or None, then remove this note; ``serving`` is the weight version."""
    note = asked_rollback(args.run_dir) if args.run_dir else None
    if note is None:
        yield None
        return
    saved = newest_of_version(Path(args.save), note.version) if args.save else None
    if saved is None or note.version == serving:
        forget_rollback(args.run_dir, note)
        say(_why_not(args, note.version, serving))
        yield None
        return
    try:
        yield saved
    except (LostError, Stopped):
        raise
    except Exception:
        forget_rollback(args.run_dir, note)
        raise
    forget_rollback(args.run_dir, note)


def _why_not(args: Arguments, version: str, serving: str) -> str:
    if version == serving:
        return f"no rollback: weights {version} serve already"
    if not args.save:
        return f"no rollback to weights {version}: the run has no checkpoints (--save FOLDER)"
    known = ", ".join(dict.fromkeys(saved.weight_version for saved in saved_versions(Path(args.save))))
    return f"no rollback: no checkpoint in {args.save} holds weights {version}; they hold {known or 'nothing yet'}"
