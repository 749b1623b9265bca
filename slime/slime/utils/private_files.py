"""Create folders and files that only this user can read, whatever the umask: logs and data hold conversations.

Guarantees: a new folder has mode 0700 and a new file 0600. A file that existed gets 0600 when it is opened here, if this
user owns it. An existing folder keeps its mode unless it holds a run. Stateless; imports only the standard library.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDER_MODE = 0o700
FILE_MODE = 0o600
OTHERS = 0o077
SIGNS_OF_A_RUN = frozenset({"arguments.json", "checkpoints", "driver.log", "logs", "runtime.log"})


def private_folder(folder: Path) -> None:
    """Create a folder with its missing parents, all of mode 0700."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(FOLDER_MODE, exist_ok=True)
    if not folder.is_dir():
        folder.mkdir()  # raises what the caller expects


def private_run_folder(folder: Path) -> str | None:
    """Create a run's folder, or make the one of an earlier run private.

    Returns:
        A warning if others can enter the folder and this function must not change it; else None.
    """
    private_folder(folder)
    status = folder.stat()
    if not status.st_mode & OTHERS:
        return None
    names = {each.name for each in folder.iterdir()}
    if status.st_uid == os.geteuid() and (not names or names & SIGNS_OF_A_RUN):
        folder.chmod(FOLDER_MODE)
        return None
    return f"other users of this machine may enter the run's folder {folder}; close it with: chmod 700 {folder}"


def make_private(file: Path | int) -> None:
    """Set mode 0600 on a path or descriptor, if it is a regular file of this user."""
    with suppress(OSError):
        status = os.stat(file)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_mode & OTHERS:
            os.chmod(file, FILE_MODE)


def private(path: str, flags: int) -> int:
    """Open a file with mode 0600: the ``opener`` of `open`."""
    descriptor = os.open(path, flags, FILE_MODE)
    make_private(descriptor)
    return descriptor


def write_note(file: Path, content: dict[str, Any]) -> None:
    """Write a small JSON file of mode 0600, whole or not at all; it survives a crash right after."""
    part = file.with_name(f"{file.name}.part")
    with open(part, "w", encoding="utf-8", opener=private) as out:
        json.dump(content, out)
        out.flush()
        os.fsync(out.fileno())
    part.replace(file)
