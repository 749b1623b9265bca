"""Going back to an earlier weight version on command: ``rollback.json`` in the run's folder asks for it, and the driver follows.

With an adapter per person each person has a note of their own, ``rollback-MARK.json``; the oldest is followed first.

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
from functools import partial
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
OF_A_PERSON = "rollback-*.json"


class Rollback(NamedTuple):
    """The weight version to go back to, since when it is asked for (seconds since the epoch), and whose adapter goes back.

    ``person`` is the name; None: the policy goes back, which all people share.
    """

    version: str
    since: float
    person: str | None = None


def ask_rollback(run_dir: str | Path, version: str | int, person: str | None = None) -> Rollback:
    """Write the note of everybody's weights or of a person, in place of an earlier one, and return it; the run acts within seconds."""
    note = Rollback(str(version), time.time(), person)
    write_note(
        _path(run_dir, person),
        {name: value for name, value in note._asdict().items() if name != "person" or value is not None},
    )
    return note


def asked_rollback(run_dir: str | Path, person: str | None = None) -> Rollback | None:
    """Return the note of everybody's weights or of a person; None if nothing is asked for.

    An unreadable note asks for a version that does not exist.
    """
    return _read(_path(run_dir, person))


def asked_rollbacks(run_dir: str | Path) -> list[Rollback]:
    """Return all notes, the oldest first."""
    notes = [note for path in _paths(run_dir) if (note := _read(path)) is not None]
    return sorted(notes, key=lambda note: note.since)


def forget_rollback(run_dir: str | Path, person: str | None = None) -> None:
    """Remove the note of everybody's weights or of a person."""
    _path(run_dir, person).unlink(missing_ok=True)


def forget_rollbacks(run_dir: str | Path) -> None:
    """Remove all notes."""
    for path in _paths(run_dir):
        path.unlink(missing_ok=True)


def _remove(path: Path, done: Rollback) -> None:
    """Remove a note if it is still this one, because somebody may have asked again meanwhile."""
    if _read(path) == done:
        path.unlink(missing_ok=True)


def _path(run_dir: str | Path, person: str | None) -> Path:
    return Path(run_dir, NAME if person is None else OF_A_PERSON.replace("*", mark_of(person)))


def _paths(run_dir: str | Path) -> list[Path]:
    return [Path(run_dir, NAME), *sorted(Path(run_dir).glob(OF_A_PERSON))]


def _read(path: Path) -> Rollback | None:
    try:
        note = Rollback(**json.loads(path.read_text(encoding="utf-8")))
        return note._replace(version=str(note.version))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        return Rollback(f"of {path}, which is unreadable ({error})", 0.0)


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
    found = [
        (note, path) for path in (_paths(args.run_dir) if args.run_dir else ()) if (note := _read(path)) is not None
    ]
    if not found:
        yield None
        return
    note, path = min(found, key=lambda each: each[0].since)
    done = partial(_remove, path, note)
    if args.adapter_per_person or note.person is not None:
        due, why_not = _due_of_person(args, note)
    else:
        due = newest_of_version(Path(args.save), note.version) if args.save else None
        why_not = _why_not(args, note.version, serving) if due is None or note.version == serving else None
    if due is None or why_not is not None:
        done()
        say(str(why_not))
        yield None
        return
    try:
        yield due
    except (LostError, Stopped):
        raise
    except Exception:
        done()
        raise
    done()


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
