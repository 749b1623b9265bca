"""Check that the folders which a run writes can be written, before anything starts.

Guarantee: creates and changes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from slime.args import Arguments
from slime.arguments.checkpoint import LATEST

CANNOT_WRITE = "cannot be written to"
FEWEST_BYTES = 32 * 2**20
"""Room that a run needs at least on a disk; its ledger alone reserves half of it."""
_IN_RUN_FOLDER = dict.fromkeys(("arguments.json", "metrics.jsonl", "driver.log", "runtime.log"), False) | {"logs": True}
_IN_SAVE = {"rollout": True, LATEST: False, "ledger.sqlite": False, "save.lock": False}
"""What a run opens in the folder, by name: whether it is a folder."""


def check_written(args: Arguments) -> list[str]:
    """Return one line for each folder that this machine or user cannot write."""
    problems: dict[str, str] = {}
    for flag, folder, inside in _folders(args):
        if reason := _reason(Path(folder), inside):
            problems.setdefault(reason, f"{flag} {folder} {CANNOT_WRITE}: {reason}; mend that, or name another folder")
    return list(problems.values())


def _folders(args: Arguments) -> Iterator[tuple[str, str, dict[str, bool]]]:
    """Yield flag, folder and what the run opens in it."""
    yield "--run-dir", str(args.run_dir), _IN_RUN_FOLDER
    for flag, folder in (("--save", args.save), ("--critic-save", args.critic_save if args.use_critic else None)):
        if folder:
            yield flag, folder, _IN_SAVE
    for flag in ("save_hf", "save_debug_rollout_data", "save_debug_train_data"):
        if template := getattr(args, flag):  # a path with {rollout_id}, perhaps in the name of a folder
            whole = Path(template).parts[:-1]
            names = whole[: next((place for place, part in enumerate(whole) if "{" in part), len(whole))]
            yield f"--{flag.replace('_', '-')}", str(Path(*names)) if names else ".", {}
    for flag in ("tensorboard_dir", "wandb_dir", "update_weight_disk_dir"):
        if folder := getattr(args, flag):
            yield f"--{flag.replace('_', '-')}", folder, {}


def _reason(folder: Path, inside: dict[str, bool]) -> str | None:
    """Return why ``folder`` cannot be written, or None."""
    there = next(each for each in (folder, *folder.absolute().parents) if os.path.lexists(each))
    if not there.exists():
        return f"{there} is a link to nothing"
    if not there.is_dir():
        return f"{there} is a file"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} is {_closed(there)}"
    room = os.statvfs(there)
    free = room.f_frsize * (room.f_bfree if os.geteuid() == 0 else room.f_bavail)
    if free < FEWEST_BYTES:
        return f"its disk has {free >> 20} MiB left, and a run needs at least {FEWEST_BYTES >> 20}"
    if there != folder:
        return None
    for name, is_folder in inside.items():
        part = folder / name
        if not os.path.lexists(part):
            continue
        if is_folder != part.is_dir():
            return f"{part} is {'not a folder' if is_folder else 'not a file'}"
        if not os.access(part, os.W_OK | os.X_OK if is_folder else os.W_OK):
            return f"{part} is {_closed(part)}"
    return None


def _closed(path: Path) -> str:
    read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    return "on a read-only file system" if read_only else f"not writable by user {os.geteuid()}"
