"""Writing and reading files for the host, from inside.

Guarantees: nothing is written outside `WRITABLE`, whatever links a program plants, also while this runs. A reader gets
regular files only, so a pipe or a device cannot hold this process up. A file is replaced whole or not at all.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from agentrl.sandbox.inside.wire import CHUNK

WRITABLE = ("/work", "/tmp")


class Refused(Exception):
    """The request makes no sense; the text says why."""


def resolved(path: str) -> str:
    """Return an absolute path without links."""
    if not path.startswith("/") or "\0" in path:
        raise Refused(f"{path!r} is not an absolute path")
    return os.path.realpath(path)


def walk(path: str, *, make: bool) -> tuple[int, str]:
    """Return a descriptor of the folder that a file is in, and its name there, having followed no link on the way.

    The path was resolved before; whoever puts a link in its way meanwhile is refused.
    """
    folder = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    *names, last = path.strip("/").split("/")
    for name in names:
        try:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=folder)
            inner = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder, last


def write_file(path: str, data: bytes, mode: int) -> None:
    """Replace a file below `WRITABLE` at once, with the folders above it."""
    real = resolved(path)
    if not real.startswith(tuple(f"{item}/" for item in WRITABLE)):
        raise Refused(f"{path} leads to {real}, which is not below {' or '.join(WRITABLE)}")
    folder, name = walk(real, make=True)
    new = f".{os.urandom(8).hex()}"
    try:
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=folder)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
            os.fchmod(file, mode)
            os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(new, dir_fd=folder)
            raise
        finally:
            os.close(file)
    finally:
        os.close(folder)


def read_file(path: str, most: int) -> bytes:
    """Return a regular file of at most ``most`` bytes."""
    real = resolved(path)
    if real.startswith("/proc/"):
        raise Refused(f"{path} leads to {real}, which is not a file of the sandbox")
    folder, name = walk(real, make=False)
    try:
        file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    with open(file, "rb", buffering=0) as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise Refused(f"{path} is not a regular file")
        data = bytearray()
        while len(data) <= most and (chunk := opened.read(min(CHUNK, most + 1 - len(data)))):
            data += chunk
    if len(data) > most:
        raise Refused(f"{path} is larger than {most} bytes")
    return bytes(data)
