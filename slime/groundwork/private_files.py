"""Create folders and files that only this user can read, whatever the umask: logs and data hold conversations.

Guarantees: a new folder has mode 0700 and a new file 0600. A file that existed gets 0600 when it is opened here, if this
user owns it. An existing folder keeps its mode unless it holds a run. What a user names as output (`writing`) is written
whole or not at all, and a device, pipe or link stays one. Stateless; imports only the standard library.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

FOLDER_MODE = 0o700
FILE_MODE = 0o600
OTHERS = 0o077
OPEN_ALREADY = re.compile(r"/dev/(?:std(?P<name>in|out|err)|fd/(?P<number>\d+))|/proc/self/fd/(?P<other>\d+)")
"""Paths of this process's own descriptors."""
SIGNS_OF_A_RUN = frozenset({"arguments.json", "checkpoints", "driver.log", "logs", "runtime.log"})


def private_folder(folder: Path) -> None:
    """Create a folder with its missing parents, all of mode 0700."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for item in reversed(missing):
        item.mkdir(FOLDER_MODE, exist_ok=True)
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
    names = {path.name for path in folder.iterdir()}
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


class OutputError(OSError):
    """What a user named cannot be written; the text is one line that names it."""


def check_output(target: Path, *not_over: Path, makes_folder: bool = False) -> None:
    """Check what a user named as output, before the work that fills it.

    Args:
        target: a file, new or not, a link to one, a pipe or a device.
        not_over: files that it must not replace.
        makes_folder: whether a missing folder will be created.

    Raises:
        OutputError: it is ``-``, a folder, in no folder, or one of ``not_over``.
    """
    if str(target) == "-":
        raise OutputError("'-' is not a file; for the standard output write /dev/stdout")
    try:
        if stat.S_ISDIR(os.stat(target).st_mode):
            raise OutputError(f"{target} is a folder; name a file in it")
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{target} cannot be written: {error.strerror}; name another file") from error
    place = Path(os.path.realpath(target))
    folder = place.parent
    while makes_folder and not folder.exists():
        folder = folder.parent
    if not no_plain_file(target) and not folder.is_dir():
        raise OutputError(f"{target}: there is no folder {place.parent}; create it, or name another file")
    for kept in not_over:
        if os.path.exists(target) and os.path.exists(kept) and os.path.samefile(target, kept):
            raise OutputError(f"{target} is what is read; name another file")


def no_plain_file(target: Path) -> bool:
    """Return whether output goes into ``target`` as it is: a device, a pipe or an open descriptor, not a plain file."""
    try:
        return bool(OPEN_ALREADY.fullmatch(str(target))) or not stat.S_ISREG(target.stat().st_mode)
    except OSError:
        return False


@contextmanager
def writing(target: Path, *not_over: Path) -> Iterator[IO[bytes]]:
    """Open what a user named as output; a plain file gets mode 0600, and keeps its old content unless all went well.

    Raises:
        OutputError: it cannot be written; also what `check_output` refuses.
    """
    check_output(target, *not_over)
    try:
        if no_plain_file(target):
            with _opened(target) as file:
                yield file
            return
        place = Path(os.path.realpath(target))
        descriptor, part = tempfile.mkstemp(prefix=f".{place.name[:100]}.", suffix=".part", dir=place.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
            os.replace(part, place)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part)
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"{target} cannot be written: {error.strerror or error}; name another file") from error


def _opened(target: Path) -> IO[bytes]:
    if match := OPEN_ALREADY.fullmatch(str(target)):
        if match["name"]:
            (sys.stderr if match["name"] == "err" else sys.stdout).flush()
        number = {"in": 0, "out": 1, "err": 2}.get(match["name"] or "")
        return os.fdopen(os.dup(int(match["number"] or match["other"]) if number is None else number), "wb")
    return open(target, "wb")


def write_output(target: Path, data: bytes | str, *not_over: Path) -> int:
    """Write what a user named as output, as `writing` does; return the number of bytes.

    Raises:
        OutputError: it cannot be written.
    """
    encoded = data.encode("utf-8", "replace") if isinstance(data, str) else data  # text may hold half a surrogate pair
    with writing(target, *not_over) as file:
        file.write(encoded)
    return len(encoded)


def write_note(file: Path, content: dict[str, Any]) -> None:
    """Write a small JSON file of mode 0600, whole or not at all; it survives a crash right after."""
    part = file.with_name(f"{file.name}.part")
    with open(part, "w", encoding="utf-8", opener=private) as out:
        json.dump(content, out)
        out.flush()
        os.fsync(out.fileno())
    part.replace(file)
