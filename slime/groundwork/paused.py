"""The notes that training is paused: ``paused.json`` in the run's folder, and one for each person whose training is.

Guarantees: a note is there until someone removes it, whichever process ends meanwhile; it is written whole or not at
all. Anybody who knows the folder can read it: the driver waits while that of the run is there, batches have no sample of a
person while that person's is, the gateway shows them, and ``openclaw-rl resume`` removes them. A third note, ``waiting.json``, says
that a step waits for the time at which training may take place. Imports only the standard library.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NamedTuple

from groundwork.people import mark_of
from groundwork.private_files import write_note

NAME = "paused.json"
OF_A_PERSON = "paused-*.json"
WAITING = "waiting.json"
WITHOUT_NAME = "local"
"""How a person is shown who has no name, because no client of the server has."""


def shown(person: str | None) -> str:
    """Return a person's name as people read and type it."""
    return person or WITHOUT_NAME


class Paused(NamedTuple):
    """Why training is paused: after which rollout, the cause, and since when (seconds since the epoch).

    Attributes:
        person: whose training; None: everybody's.
    """

    rollout_id: int
    why: str
    since: float
    person: str | None = None

    @property
    def shown(self) -> str:
        """The person's name as people read and type it."""
        return shown(self.person)

    def __str__(self) -> str:
        whose = "" if self.person is None else f" of {self.shown}"
        return f"training{whose} is paused since rollout {self.rollout_id}: {self.why}"


def pause(run_dir: str | Path, rollout_id: int, why: str, person: str | None = None) -> Paused:
    """Write the note of the run, or of a person, and return it."""
    note = Paused(rollout_id, why, time.time(), person)
    write_note(_path(run_dir, person), note._asdict())
    return note


def paused(run_dir: str | Path) -> Paused | None:
    """Return the note of the run; None if its training is not paused."""
    return _read(Path(run_dir, NAME))


def paused_people(run_dir: str | Path) -> dict[str, Paused]:
    """Return the notes of people whose training is paused, by person."""
    notes = [_read(path) for path in sorted(Path(run_dir).glob(OF_A_PERSON))]
    return {note.person: note for note in notes if note is not None and note.person is not None}


def resume(run_dir: str | Path, person: str | None = None) -> Paused | None:
    """Remove the note of the run, or of a person, and return it; None if there was none."""
    path = _path(run_dir, person)
    note = _read(path)
    path.unlink(missing_ok=True)
    return note


def note_waiting(run_dir: str | Path, why: str | None, *, of_people: bool = False) -> None:
    """Write why a step that is due waits for its time, or remove that with None; ``of_people``: it tells that people talk."""
    path = Path(run_dir, WAITING)
    if why is None:
        path.unlink(missing_ok=True)
    else:
        write_note(path, {"why": why, "since": time.time(), "of_people": of_people})


def waiting(run_dir: str | Path, *, to_anybody: bool = False) -> str | None:
    """Return why a step that is due waits for its time; None if none does.

    ``to_anybody``: only what the run's settings say, the hours, and nothing that tells that people talk.
    """
    try:
        note = json.loads(Path(run_dir, WAITING).read_text(encoding="utf-8"))
        return None if to_anybody and note["of_people"] is not False else str(note["why"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _path(run_dir: str | Path, person: str | None) -> Path:
    if person is None:
        return Path(run_dir, NAME)
    return Path(run_dir, OF_A_PERSON.replace("*", mark_of(person)))


def _read(path: Path) -> Paused | None:
    try:
        return Paused(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        return Paused(-1, f"{path} is unreadable ({error})", 0.0)
