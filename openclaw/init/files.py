"""Put text where a person may have files of their own.

Guarantees: a file that a person wrote or changed is never replaced. What would replace it goes beside it, and the note says
so. An entry is added to a JSON file without changing any other, and the file as it was is kept beside it. Every file has
mode 0600, because it may hold a key, and is written whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from groundwork.exceptions import ConfigError
from groundwork.private_files import private_folder, write_output
from openclaw.runtime.where import shown_path

NEW, BEFORE = ".new", ".before-openclaw-rl"
Entry = dict[str, Any]


def put(path: Path, text: str) -> str:
    """Write a file of our own, and return a line that says where it is.

    Raises:
        ConfigError: it cannot be written.
    """
    if _read(path) == text:
        return f"unchanged  {shown_path(path)}"
    if not path.exists():
        _write(path, text)
        return f"wrote      {shown_path(path)}"
    beside = next(each for each in _besides(path) if not os.path.lexists(each) or _read(each) == text)
    if not beside.exists():
        _write(beside, text)
    return f"kept       {shown_path(path)} differs and stays as it is; the new one is {shown_path(beside)}"


def put_once(path: Path, text: str) -> str | None:
    """Write a file if there is none, or the same one; return a line as `put`, or None where the person has another file.

    Raises:
        ConfigError: it cannot be written.
    """
    return put(path, text) if not path.exists() or _read(path) == text else None


def add_to_json(path: Path, change: Callable[[Entry], None]) -> str | None:
    """Let ``change`` add to the object in a JSON file; return a line as `put`, or None if the file is no plain JSON object.

    Raises:
        ConfigError: it cannot be written.
    """
    before = _read(path)
    try:
        content = json.loads(before or "")
    except ValueError:
        return None  # JSON with comments: writing it again would lose them
    if not isinstance(content, dict):
        return None
    try:
        change(content)
    except (AttributeError, TypeError):
        return None  # an entry of the person has another form than the client's own pages say
    after = json.dumps(content, indent=2) + "\n"
    if json.loads(after) == json.loads(before or ""):
        return f"unchanged  {shown_path(path)}"
    kept = path.with_name(path.name + BEFORE)
    if not kept.exists():
        _write(kept, before or "")
    _write(path, after)
    return f"added to   {shown_path(path)}; as it was: {shown_path(kept)}"


def _besides(path: Path) -> Iterator[Path]:
    """Yield names beside a file; an earlier one may be a file that a person has changed."""
    yield path.with_name(path.name + NEW)
    for number in count(2):
        yield path.with_name(f"{path.name}{NEW}-{number}")


def _read(path: Path) -> str | None:
    """Return the text of a file; None without one, or if it is no text that this user may read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _write(path: Path, text: str) -> None:
    try:
        private_folder(path.parent)
        write_output(path, text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}; name another folder with --folder") from error
