"""The records of a driver: a folder with a line per run and per group, from which a later process goes on.

Guarantees: a line is on disk before the next run of its group begins, and the name of a group before its first run. Files are
for their owner only. A folder belongs to one schedule; another one is refused. A line that a crash cut off is ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from groundwork.exceptions import ConfigError
from groundwork.private_files import private, private_folder

EPISODES = "episodes.jsonl"
GROUPS = "groups.jsonl"
SCHEDULE = "schedule.json"
BEGUN, FINISHED, GIVEN_UP = "begun", "finished", "given_up"
"""States of a group; what it has then was settled at the gateway, unless it has only begun."""


def schedule_of(tasks: Sequence[str], harness: str, group_size: int, seed: int) -> dict[str, Any]:
    """Return what decides the order of groups, as JSON."""
    digest = hashlib.sha256("\n".join(tasks).encode()).hexdigest()
    return {"tasks": digest, "harness": harness, "group_size": group_size, "seed": seed}


class Records:
    """The folder; without one, nothing is kept."""

    def __init__(self, folder: Path | None, schedule: Mapping[str, Any]) -> None:
        """Open a folder, new or of an earlier process.

        Raises:
            ConfigError: the folder is of another schedule, or cannot be used.
        """
        self._folder = folder
        if folder is None:
            return
        path = folder / SCHEDULE
        try:
            private_folder(folder)
            earlier = json.loads(path.read_text()) if path.exists() else None
            if earlier is None:
                with open(path, "w", opener=private) as file:
                    json.dump(dict(schedule), file)
            for name in (EPISODES, GROUPS):
                _end_line(folder / name)
        except (OSError, ValueError) as error:
            raise ConfigError(f"--records {folder}: {error}; use another folder") from error
        if earlier is not None and earlier != schedule:
            changed = ", ".join(name for name in schedule if earlier.get(name) != schedule[name])
            raise ConfigError(f"--records {folder} is of another run ({changed} differ); use another folder")

    def finished(self) -> frozenset[int]:
        """Return the numbers of the groups that were finished."""
        if self._folder is None:
            return frozenset()
        return frozenset(line["number"] for line in lines(self._folder / GROUPS) if line["state"] == FINISHED)

    def left(self) -> list[dict[str, Any]]:
        """Return the lines of the groups that earlier processes began and did not end, oldest first."""
        if self._folder is None:
            return []
        result = list(lines(self._folder / GROUPS))
        ended = {line["group"] for line in result if line["state"] != BEGUN}
        return [line for line in result if line["state"] == BEGUN and line["group"] not in ended]

    def episode(self, line: Mapping[str, Any]) -> None:
        """Keep what became of a run."""
        self._append(EPISODES, line)

    def group(self, line: Mapping[str, Any]) -> None:
        """Keep that a group begins, or what became of it; ``number``, ``group`` and ``state`` are needed to go on."""
        self._append(GROUPS, line)

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        if self._folder is None:
            return
        with open(self._folder / name, "a", opener=private) as file:
            file.write(json.dumps(dict(line)) + "\n")
            file.flush()
            os.fsync(file.fileno())


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole lines of a file of records; none if there is no file."""
    if not path.exists():
        return
    for line in path.read_bytes().split(b"\n"):
        try:
            yield json.loads(line)
        except ValueError:
            continue  # cut off by a crash


def _end_line(path: Path) -> None:
    """End the line that a crash cut off, so that the next one begins a line of its own."""
    if path.exists() and (text := path.read_bytes()) and not text.endswith(b"\n"):
        with open(path, "ab") as file:
            file.write(b"\n")
