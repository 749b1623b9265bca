"""Which folder is which checkpoint of a run: its own names, and those that other trainers use.

A root holds ``iter_0000500`` for the checkpoint after 500 rollouts, and the file `LATEST` with the number of the newest.
``ROOT/checkpoint-500`` and ``ROOT/checkpoint-latest`` stand for checkpoints, too. They are names, not files, so none can
outlive its checkpoint. A folder that really has such a name is itself.

Guarantees: only reads. Imports no torch.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

LATEST = "latest_checkpointed_iteration.txt"
META = "meta.json"
"""What is known of a checkpoint: its rollout, its weight version, the model that its run began with."""
AT_SERVICE = "tinker_path"
"""In a checkpoint's ``meta.json`` of a run at a service: the path of the state there, which has the weights."""
PEOPLE = "people"
"""In a checkpoint's ``meta.json`` with ``--adapter-per-person``: the name of each person's version, by mark."""
NEWEST_VERSIONS = "newest_versions"
"""Beside it, by mark: the highest number that any version of the person had, a refused one included."""
STATE_OF_PERSON = "state.json"
"""In the folder of a person's version: what `slime.backends.trainer.rank` says in a checkpoint's ``meta.json``."""
FORGOTTEN = "forgotten"
"""In it: how often the person had been forgotten when this state began (`slime.weight_sync.people`)."""
NAMED = re.compile(r"checkpoint-(\d{1,9}|latest)")
SHOWN_NUMBERS = 5


def newest_checkpoint(root: Path) -> tuple[Path | None, str | None]:
    """Return the folder of the newest checkpoint, or what is wrong with the marker of the newest; neither without one.

    ``root`` may be one checkpoint, which then is the newest.
    """
    if (root / META).is_file():
        return root, None
    marker = root / LATEST
    if not marker.is_file():
        return None, None
    try:
        text = marker.read_text().strip()
    except (OSError, ValueError) as error:
        return None, f"{LATEST} cannot be read ({error})"
    if not text.isdecimal():
        return None, f"{LATEST} says {text[:40]!r}, which is not a number"
    folder = root / f"iter_{int(text):07d}"
    for there in (folder, folder.with_name(f"{folder.name}.old")):  # the second after a crash between two renames
        if there.is_dir():
            return there, None
    return None, f"{LATEST} names {folder.name}, which does not exist"


def named_checkpoint(path: str) -> str:
    """Return the folder that ``ROOT/checkpoint-500`` or ``ROOT/checkpoint-latest`` stands for; any other path unchanged.

    For the newest checkpoint it is ROOT, from which a run goes on.
    """
    place = Path(path)
    named = NAMED.fullmatch(place.name)
    if named is None or os.path.lexists(place):
        return path
    newest, _ = newest_checkpoint(place.parent)
    if newest is None or newest == place.parent:
        return path
    number = number_of(newest) if named[1] == "latest" else int(named[1])
    if number == number_of(newest):
        return str(place.parent)
    folder = place.parent / f"iter_{number:07d}"
    return str(folder) if (folder / META).is_file() else path


def number_of(checkpoint: Path) -> int:
    """Return the number of rollouts that a checkpoint comes after.

    Raises:
        ValueError: its folder has no such name.
    """
    return int(checkpoint.name.removeprefix("iter_").removesuffix(".old"))


def trained_checkpoint(path: str) -> Path | None:
    """Return the folder of the trainer's checkpoint that a path or name is, a root giving its newest.

    None if it is none, or a folder with a Hugging Face model.
    """
    if Path(path, "config.json").is_file():
        return None
    folder, _ = newest_checkpoint(Path(named_checkpoint(path)))
    return None if folder is None or not (folder / META).is_file() else folder


def origin_of(checkpoint: Path) -> str | None:
    """Return the model that the run of a checkpoint began with, or None if it does not say."""
    try:
        values = json.loads((checkpoint / META).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values.get("hf_checkpoint") if isinstance(values, dict) else None


def others_than(path: str) -> str:
    """Return ``; ROOT has checkpoint-400`` for the missing ``ROOT/checkpoint-500``; nothing for other paths."""
    place = Path(path)
    if not NAMED.fullmatch(place.name):
        return ""
    numbers = sorted(number_of(folder) for folder in place.parent.glob("iter_*[0-9]") if folder.name[5:].isdecimal())
    if not numbers:
        return f"; {place.parent} has no checkpoint"
    return f"; {place.parent} has {', '.join(f'checkpoint-{number}' for number in numbers[-SHOWN_NUMBERS:])}"
