"""The weight versions that a run's checkpoints hold. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from slime.arguments.checkpoint import LATEST


class SavedVersion(NamedTuple):
    """A checkpoint that a run can go back to.

    Attributes:
        weight_version: version of its weights.
        rollout_id: last rollout whose steps it contains.
        folder: where it is.
        time: when it was written, in seconds since the epoch.
    """

    weight_version: str
    rollout_id: int
    folder: Path
    time: float

    @property
    def iteration(self) -> int:
        """Return the number of the folder, the first rollout after the checkpoint."""
        return self.rollout_id + 1


def checkpoint_folders(root: Path) -> list[Path]:
    """Return the folders of complete checkpoints, oldest first."""
    return sorted(path for path in root.glob("iter_*") if path.is_dir() and path.name.removeprefix("iter_").isdigit())


def saved_versions(root: Path) -> list[SavedVersion]:
    """Return the policy's published checkpoints under ``root`` (``--save``), oldest first; empty without any.

    Checkpoints of undone steps repeat the version before them.
    """
    try:
        latest = int((root / LATEST).read_text())
    except (FileNotFoundError, ValueError):
        return []
    found = []
    for folder in checkpoint_folders(root):
        file = folder / "meta.json"
        if int(folder.name.removeprefix("iter_")) > latest or not file.is_file():
            continue  # a run that resumes writes it again
        meta = json.loads(file.read_text())
        if "weight_version" in meta:
            version = str(meta["weight_version"])
            found.append(SavedVersion(version, int(meta["rollout_id"]), folder, file.stat().st_mtime))
    return found


def newest_of_version(root: Path, version: str) -> SavedVersion | None:
    """Return the newest published checkpoint with weight version ``version``; None if there is none."""
    return next((saved for saved in reversed(saved_versions(root)) if saved.weight_version == version), None)
