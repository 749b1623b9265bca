"""The note that training is paused: ``paused.json`` in the run's folder.

Guarantees: the note is there until someone removes it, whichever process ends meanwhile; it is written whole or not at
all. Anybody who knows the folder can read it: the driver waits while it is there, the gateway shows it, and
``openclaw-rl resume`` removes it. Imports only the standard library.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import NamedTuple

from groundwork.private_files import write_note

NAME = "paused.json"


class Paused(NamedTuple):
    """Why training is paused: after which rollout, the fuse with its value, and since when (seconds since the epoch)."""

    rollout_id: int
    why: str
    since: float

    def __str__(self) -> str:
        return f"training is paused since rollout {self.rollout_id}: {self.why}"


def pause(run_dir: str | Path, rollout_id: int, why: str) -> Paused:
    """Write the note and return it."""
    note = Paused(rollout_id, why, time.time())
    write_note(Path(run_dir, NAME), note._asdict())
    return note


def paused(run_dir: str | Path) -> Paused | None:
    """Return the note; None if training is not paused."""
    try:
        return Paused(**json.loads(Path(run_dir, NAME).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        return Paused(-1, f"{Path(run_dir, NAME)} is unreadable ({error})", 0.0)


def resume(run_dir: str | Path) -> Paused | None:
    """Remove the note and return it; None if there was none."""
    note = paused(run_dir)
    Path(run_dir, NAME).unlink(missing_ok=True)
    return note
