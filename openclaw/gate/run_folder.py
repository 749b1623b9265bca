"""A run's folder as the gate's commands see it: its ledger, its checkpoints, and whether it is up.

Guarantees: read-only. A run is up while the process that its lock names lives; a process of another machine counts as alive.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from groundwork.command_line import nearest_path
from openclaw.config.gate_variables import GateVariables
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.runtime.where import ARGUMENTS_NAME, CHECKPOINTS_NAME, SETTINGS_NAME, find_ledger
from slime.checkpoints.versions import SavedVersion, saved_versions

SAVE_LOCK = "save.lock"
HOLDER = re.compile(r"process (?P<pid>\d+) on (?P<host>[^,]+),")


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps its things; ``save``: the folder of its checkpoints."""

    folder: Path
    ledger: Path
    save: Path

    def saved(self) -> list[SavedVersion]:
        """Return the checkpoints that the run can go back to, oldest first."""
        return saved_versions(self.save)

    def bounds(self, environment: Mapping[str, str] = os.environ) -> GateVariables:
        """Return the gate's variables: of ``environment``, else those that the run was started with.

        Raises:
            ConfigError: one is invalid.
        """
        kept = {name: value for name, value in environment.items() if value}
        return GateVariables.from_env({**_strings(self.folder / SETTINGS_NAME), **kept})

    def is_up(self) -> bool:
        """Return whether the run's driver lives."""
        try:
            held = HOLDER.search((self.save / SAVE_LOCK).read_text(encoding="utf-8", errors="replace"))
        except OSError:
            return False
        return held is not None and (held["host"] != socket.gethostname() or psutil.pid_exists(int(held["pid"])))


def open_run(folder: Path) -> RunFolder:
    """Return a run's folder.

    Raises:
        UnknownRecordError: if it has no ledger; the message says what to type.
    """
    ledger = find_ledger(folder)
    if ledger is None or not folder.is_dir():
        raise UnknownRecordError(
            f"no ledger in {folder}{nearest_path(folder) or '; name the folder of a run, such as runs/NAME'}"
        )
    saved = _strings(folder / ARGUMENTS_NAME).get("save")
    return RunFolder(folder, ledger, Path(saved) if saved else folder / CHECKPOINTS_NAME)


def _strings(file: Path) -> dict[str, str]:
    """Return the texts of an object in a file, by name; empty without the file."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}
