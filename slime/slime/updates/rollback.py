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

from groundwork.paused import shown
from groundwork.people import mark_of
from groundwork.private_files import write_note
from groundwork.process import Stopped
from slime.args import Arguments
from slime.checkpoints.versions import SavedVersion, newest_of_version, saved_versions
from slime.exceptions import LostError
from slime.utils.run_logs import say
from slime.weight_sync.people import Book, people_folder

NAME = "rollback.json"


class Rollback(NamedTuple):
    """The weight version to go back to, since when it is asked for (seconds since the epoch), and whose adapter goes back.

    ``person`` is the name; None: the policy goes back, which all people share.
    """

    version: str
    since: float
    person: str | None = None


def ask_rollback(run_dir: str | Path, version: str | int, person: str | None = None) -> Rollback:
    """Write the note, in place of an earlier one, and return it; the run acts within seconds."""
    note = Rollback(str(version), time.time(), person)
    write_note(
        Path(run_dir, NAME),
        {name: value for name, value in note._asdict().items() if name != "person" or value is not None},
    )
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


class OfPerson(NamedTuple):
    """An earlier version of one person's adapter.

    Attributes:
        person: whose, by name.
        weight_version: its number.
        name: on the engines, and of its folder (`slime.weight_sync.people`); None of version 0, the base.
    """

    person: str
    weight_version: str
    name: str | None


@contextmanager
def due_rollback(args: Arguments, serving: str) -> Iterator[SavedVersion | OfPerson | None]:
    """Run the block with the version to go back to, or None, then remove this note; ``serving`` is the weight version."""
    note = asked_rollback(args.run_dir) if args.run_dir else None
    if note is None:
        yield None
        return
    if args.adapter_per_person or note.person is not None:
        due, why_not = _due_of_person(args, note)
    else:
        due = newest_of_version(Path(args.save), note.version) if args.save else None
        why_not = _why_not(args, note.version, serving) if due is None or note.version == serving else None
    if due is None or why_not is not None:
        forget_rollback(args.run_dir, note)
        say(str(why_not))
        yield None
        return
    try:
        yield due
    except (LostError, Stopped):
        raise
    except Exception:
        forget_rollback(args.run_dir, note)
        raise
    forget_rollback(args.run_dir, note)


def _due_of_person(args: Arguments, note: Rollback) -> tuple[OfPerson | None, str | None]:
    """Return the version to go back to, or why there is none."""
    if not args.adapter_per_person:
        return None, f"no rollback of {shown(note.person)}: all people share one policy; ask without a person"
    if note.person is None:
        return None, f"no rollback to weights {note.version}: each person has an adapter; name the person"
    versions = Book(people_folder(args.run_dir)).versions(mark_of(note.person))
    known = {"0": None} | {str(version.number): version.name for version in reversed(versions)}
    if note.version == (str(versions[0].number) if versions else "0"):
        return None, f"no rollback: weights {note.version} serve {shown(note.person)} already"
    if note.version not in known:
        return None, f"no rollback of {shown(note.person)} to weights {note.version}: there are {', '.join(known)}"
    return OfPerson(note.person, note.version, known[note.version]), None


def _why_not(args: Arguments, version: str, serving: str) -> str:
    if version == serving:
        return f"no rollback: weights {version} serve already"
    if not args.save:
        return f"no rollback to weights {version}: the run has no checkpoints (--save FOLDER)"
    known = ", ".join(dict.fromkeys(saved.weight_version for saved in saved_versions(Path(args.save))))
    return f"no rollback: no checkpoint in {args.save} holds weights {version}; they hold {known or 'nothing yet'}"
