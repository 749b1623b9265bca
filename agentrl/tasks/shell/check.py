"""The verifier's program in every generated task: ``python3 -I check.py EXPECTED HOME REWARD``.

Guarantees: it executes nothing of the agent's, reads at most `MAX_BYTES` of a file, follows no link out of HOME, and
writes 1 to REWARD only if every check of EXPECTED, a JSON list, holds; otherwise 0. Only the standard library is imported,
because the program runs alone beside the tests.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import stat
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 20
ERRORS = (OSError, ValueError, EOFError, RuntimeError, tarfile.TarError, csv.Error, zlib.error, lzma.LZMAError)
"""What the standard library raises for odd data."""
Check = dict[str, Any]


class WrongError(Exception):
    """What the agent left is not what the task asks for."""


def read(home: Path, name: str) -> bytes:
    """Return a plain file of the agent's.

    Raises:
        WrongError: there is none within ``home``, or it is too large.
    """
    path = (home / name).resolve()
    if not path.is_relative_to(home) or not path.is_file():
        raise WrongError("is not a file")
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise WrongError("is too large")
    return data


def text(home: Path, check: Check) -> None:
    """The lines of a file, whatever white space ends them and the file."""
    lines = [line.rstrip() for line in read(home, check["path"]).decode().rstrip().splitlines()]
    if lines != check["lines"]:
        raise WrongError("has other lines")


def exact(home: Path, check: Check) -> None:
    """A file, byte for byte."""
    if read(home, check["path"]) != check["text"].encode():
        raise WrongError("has other bytes")


def value(home: Path, check: Check) -> None:
    """A JSON file, whatever its white space and the order of keys; ``true`` is not ``1``."""
    document = json.loads(read(home, check["path"]))
    if json.dumps(document, sort_keys=True) != json.dumps(check["value"], sort_keys=True):
        raise WrongError("has another value")


def table(home: Path, check: Check) -> None:
    """A CSV file, whatever its quotes."""
    if [row for row in csv.reader(io.StringIO(read(home, check["path"]).decode())) if row] != check["rows"]:
        raise WrongError("has other rows")


def mode(home: Path, check: Check) -> None:
    """The permission bits of a file or folder."""
    result = stat.S_IMODE((home / check["path"]).lstat().st_mode)
    if result != int(check["mode"], 8):
        raise WrongError(f"has mode {result:o}")


def absent(home: Path, check: Check) -> None:
    """Nothing has this path."""
    if (home / check["path"]).is_symlink() or (home / check["path"]).exists():
        raise WrongError("still exists")


def names(home: Path, check: Check) -> None:
    """The names in a folder."""
    if sorted(path.name for path in (home / check["path"]).iterdir()) != check["names"]:
        raise WrongError("has other names in it")


def link(home: Path, check: Check) -> None:
    """Where a symbolic link leads to."""
    path = home / check["path"]
    if not path.is_symlink() or path.resolve() != home / check["target"]:
        raise WrongError("does not lead there")


def unpacked(data: bytes) -> bytes:
    """Return data without its compression, if it has one.

    Raises:
        WrongError: it is too large.
    """
    for start, opened in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open)):
        if data.startswith(start):
            with opened(io.BytesIO(data)) as file:
                data = file.read(MAX_BYTES + 1)
            break
    if len(data) > MAX_BYTES:
        raise WrongError("is too large")
    return data


def archive(home: Path, check: Check) -> None:
    """The plain files of a tar archive, by name, with their text."""
    results: dict[str, str] = {}
    most_members = 2 * len(check["files"]) + 10
    with tarfile.open(fileobj=io.BytesIO(unpacked(read(home, check["path"])))) as tar:
        for number, member in enumerate(tar):
            if number > most_members:
                raise WrongError("has other members")
            if member.isdir():
                continue
            file = tar.extractfile(member) if member.isreg() and not member.issparse() else None
            if file is None or not 0 <= member.size <= MAX_BYTES:
                raise WrongError("has other members")
            results[member.name.removeprefix("./")] = file.read().decode()
    if results != check["files"]:
        raise WrongError("has other members")


KINDS: dict[str, Callable[[Path, Check], None]] = {
    item.__name__: item for item in (text, exact, value, table, mode, absent, names, link, archive)
}


def problem(home: Path, check: Check) -> str | None:
    """Return why a check does not hold; None if it does. Odd data of the agent's never raises."""
    try:
        KINDS[check["kind"]](home, check)
    except WrongError as error:
        return str(error)
    except ERRORS as error:
        return type(error).__name__
    return None


def main(expected: str, home: str, reward: str) -> None:
    """Judge, print a line per failed check, and write the reward."""
    checks: list[Check] = json.loads(Path(expected).read_text())
    root = Path(home).resolve()
    wrong = [f"{check['path']} {why}" for check in checks if (why := problem(root, check)) is not None]
    print(*wrong, f"{len(checks) - len(wrong)} of {len(checks)} checks hold", sep="\n")
    Path(reward).write_text("0\n" if wrong or not checks else "1\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
