"""The files of a run: its ledger, its settings, its metrics and its notes.

Guarantees: read-only, but that opening a ledger migrates a file of an older version. Whatever is missing is None or
empty, because a run may be down, moved or broken.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groundwork.command_line import nearest_path
from groundwork.paused import Paused, paused, paused_people
from groundwork.start_timeline import Event
from groundwork.start_timeline import read as read_start
from openclaw.exceptions import NoRunError
from openclaw.ledger.store import Ledger
from openclaw.runs import metrics_file
from openclaw.runtime.where import ARGUMENTS_NAME, LEDGER_NAME, SETTINGS_NAME, find_ledger
from slime.args import Arguments

EPISODE_RECORDS = "episodes/*.jsonl"
"""Of the agent loop, in a run's folder."""


@dataclass(frozen=True)
class RunFolder:
    """What is known about a run.

    Attributes:
        place: what the user typed.
        ledger_path: the ledger file.
        folder: the run's folder; None if only the ledger is known.
        arguments: the trainer's, without secrets.
        settings: the runtime's variables that are not defaults, without secrets; None if the run did not record them.
    """

    place: Path
    ledger_path: Path
    folder: Path | None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] | None = None

    @property
    def shown(self) -> str:
        """The run as a user types it."""
        return str(self.place)

    @property
    def paused(self) -> Paused | None:
        """The note that a fuse has paused the training, or None."""
        return None if self.folder is None else paused(self.folder)

    @property
    def start(self) -> list[Event]:
        """The timeline of the run's last start, or nothing."""
        return [] if self.folder is None else read_start(self.folder)

    @property
    def people_paused(self) -> dict[str, Paused]:
        """The notes of people whose training is paused, by person."""
        return {} if self.folder is None else paused_people(self.folder)

    @property
    def metrics_path(self) -> Path:
        """The metrics file, which may be missing."""
        return (self.folder or self.ledger_path.parent) / metrics_file.NAME

    def trainer_arguments(self) -> Arguments:
        """Return the trainer's arguments, with defaults for what the run did not record."""
        return Arguments.of(self.arguments)

    def open_ledger(self) -> Ledger:
        """Open the ledger; the caller closes it. Raises LedgerError if it cannot be read."""
        return Ledger(self.ledger_path)


def open_run(place: Path) -> RunFolder:
    """Return the run at ``place``: its folder, its folder of checkpoints, or its ledger file.

    Raises:
        NoRunError: there is no ledger; says what to type.
    """
    ledger = find_ledger(place)
    if ledger is None:
        raise NoRunError(no_ledger(place))
    near = [place, ledger.parent, ledger.parent.parent]
    folder = next((item for item in near if (item / ARGUMENTS_NAME).is_file()), None)
    if folder is None:
        return RunFolder(place, ledger, ledger.parent if place.is_dir() else None)
    return RunFolder(place, ledger, folder, _json(folder / ARGUMENTS_NAME) or {}, _json(folder / SETTINGS_NAME))


def run_at(folder: Path, ledger: Path) -> RunFolder:
    """Return the run of a folder whose ledger lies anywhere."""
    return RunFolder(folder, ledger, folder, _json(folder / ARGUMENTS_NAME) or {}, _json(folder / SETTINGS_NAME))


def no_ledger(place: Path) -> str:
    """Return a line about a place without a ledger, and what to type instead."""
    if place.is_dir() and any(place.glob(EPISODE_RECORDS)):
        report = place / "report.json"
        figures = f"its figures are in {report}; " if report.is_file() else ""
        return f"{place} is a run of agents without conversations: {figures}its episodes: openclaw-rl inspect {place} --episodes"
    if place.is_dir():
        runs = sorted(
            (path for path in place.iterdir() if path.is_dir() and find_ledger(path)),
            key=lambda run: run.stat().st_mtime,
        )
        meant = f"the newest of {len(runs)} there is {runs[-1]}" if runs else "the run prints the line at its start"
        return f"no {LEDGER_NAME} in {place}; name the folder of a run, such as runs/NAME: {meant}"
    if meant := nearest_path(place):
        return f"no ledger at {place}{meant}"
    return f"no ledger at {place}; name a folder under runs/: a run prints the line at its start"


def _json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file; None if there is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
