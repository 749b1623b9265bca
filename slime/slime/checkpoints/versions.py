"""The weight versions that a run's checkpoints hold. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from groundwork.checkpoint_names import AT_SERVICE, LATEST, META, NEWEST_VERSIONS, PEOPLE
from groundwork.private_files import write_note


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
    def at_service(self) -> str | None:
        """Return the path of the state at a service that has the weights, which are not in the folder then."""
        return json.loads((self.folder / META).read_text()).get(AT_SERVICE)

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
    results = []
    for folder in checkpoint_folders(root):
        file = folder / "meta.json"
        if _iteration_of(folder) > latest or not file.is_file():
            continue  # a run that resumes writes it again
        meta = json.loads(file.read_text())
        if "weight_version" in meta:
            version = str(meta["weight_version"])
            results.append(SavedVersion(version, int(meta["rollout_id"]), folder, file.stat().st_mtime))
    return results


def superseded(root: Path, iteration: int, keep: int) -> list[Path]:
    """Return the policy's checkpoints to delete once ``iteration`` is the latest, so that ``keep`` different ones stay.

    Checkpoints with the same weights count once, and the newest of them stays: refused steps leave the weights as they were,
    and must not push out the versions that a run can go back to. 0 keeps all.
    """
    if keep <= 0:
        return []
    newest: dict[str, Path] = {}
    folders = [folder for folder in checkpoint_folders(root) if _iteration_of(folder) <= iteration]
    for folder in folders:
        identity = _weights_of(folder)
        newest.pop(identity, None)  # so that the order is that of the newest
        newest[identity] = folder
    kept = list(newest.values())[-keep:]
    return [folder for folder in folders if folder not in kept]


def superseded_of_critic(root: Path, iteration: int, keep: int, policy: Path) -> list[Path]:
    """Return the critic's checkpoints to delete: all but the ``keep`` newest, and but those that the ``policy``'s root has too."""
    if keep <= 0:
        return []
    folders = [folder for folder in checkpoint_folders(root) if _iteration_of(folder) <= iteration]
    return [folder for folder in folders[:-keep] if not (policy / folder.name).is_dir()]


def forget_person(root: Path, mark: str) -> None:
    """Strike a person out of all checkpoints under ``root`` that name everybody's adapters; the others stay as they are."""
    for file in root.glob(f"iter_*/{META}"):
        try:
            meta = json.loads(file.read_text())
            if [part for part in (PEOPLE, NEWEST_VERSIONS) if meta.get(part, {}).pop(mark, None) is not None]:
                write_note(file, meta)
        except FileNotFoundError:
            continue  # deleted meanwhile, by the trainer


def _iteration_of(folder: Path) -> int:
    return int(folder.name.removeprefix("iter_"))


def _weights_of(folder: Path) -> str:
    """Return what tells the weights of a run's checkpoints apart: their version and the optimizer's steps."""
    file = folder / "meta.json"
    if not file.is_file():
        return folder.name
    meta = json.loads(file.read_text())
    return json.dumps([meta.get("weight_version", folder.name), meta.get("schedule", {}).get("steps")])


def newest_of_version(root: Path, version: str) -> SavedVersion | None:
    """Return the newest published checkpoint with weight version ``version``; None if there is none."""
    return next((saved for saved in reversed(saved_versions(root)) if saved.weight_version == version), None)
