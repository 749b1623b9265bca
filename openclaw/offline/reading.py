"""Reads ``DATA_PATH``: finds out what each file is, and returns its conversations.

A path is a file or a folder. A folder or file with a ledger is a run (or the folder of `openclaw.server.collect`), whose
turns keep their token ids. Otherwise the ``.jsonl`` and ``.json`` files are logs: conversations of the guide and of
``inspect export``, chat logs (`openclaw.offline.chat_logs`), or exports of ChatGPT and ShareGPT files
(`openclaw.offline.exports`). One file may mix formats.

Guarantees: an unreadable line is an error that names file and line, and says what to write. What is left out is counted by
reason. Nothing is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groundwork.command_line import nearest_path
from openclaw.ledger.conversations import FORMAT, ImportFormatError, read_objects, read_session_id, read_turns
from openclaw.offline.chat_logs import (
    FAILED_CALL,
    WRITE_MESSAGES,
    WRITE_PAIR,
    LoggedConversation,
    Pairs,
    conversation_of,
    is_pair,
)
from openclaw.offline.exports import is_export, read_export
from openclaw.offline.other_forms import keys_of
from openclaw.runtime.where import LEDGER_NAME, find_ledger

SQLITE = b"SQLite format 3\x00"
SUFFIXES = (".jsonl", ".json")


@dataclass
class Logs:
    """What a path holds: ``ledger`` of a run, or else the conversations of ``files``.

    ``left_out`` counts what became no turn, by reason.
    """

    path: Path
    ledger: Path | None = None
    files: list[Path] = field(default_factory=list[Path])
    conversations: list[LoggedConversation] = field(default_factory=list[LoggedConversation])
    left_out: Counter[str] = field(default_factory=Counter[str])


def read_logs(path: Path) -> Logs:
    """Return what ``path`` holds.

    Raises:
        ImportFormatError: there is nothing to read, or a line has no known format.
    """
    if not path.exists():
        raise ImportFormatError(f"DATA_PATH {path}: no such file or folder{nearest_path(path)}")
    if path.is_dir():
        if text := find_ledger(path):
            return Logs(path, ledger=text)
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
        if not files:
            raise ImportFormatError(
                f"DATA_PATH {path}: the folder has neither {LEDGER_NAME} nor a .jsonl or .json file; name a run's folder, "
                "or a folder or file of logs"
            )
    elif _begins_with(path, SQLITE):
        return Logs(path, ledger=path)
    else:
        files = [path]
    logs = Logs(path, files=files)
    pairs = Pairs()
    for file in files:
        logs.conversations += _conversations(file, pairs, logs.left_out)
    logs.conversations += pairs.conversations()
    if pairs.failed:
        logs.left_out[FAILED_CALL] += pairs.failed
    if not logs.conversations:
        text = ", ".join(f"{reason} {count}" for reason, count in sorted(logs.left_out.items()))
        raise ImportFormatError(
            f"DATA_PATH {path} holds no conversation{f' (left out: {text})' if text else ''}; {FORMAT} is one"
        )
    return logs


def _conversations(file: Path, pairs: Pairs, left_out: Counter[str]) -> Iterator[LoggedConversation]:
    """Yield the conversations of a file; pairs of requests and responses go to ``pairs``."""
    for place, value in _values(file):
        if not isinstance(value, dict):
            raise ImportFormatError(
                f"{place} is not an object; write {FORMAT}, or {WRITE_MESSAGES.removeprefix('write ')}"
            )
        if "turns" in value:
            yield LoggedConversation(place, read_session_id(value, place), read_turns(value, place))
        elif is_pair(value):
            pairs.add(value, place)
        elif is_export(value):
            line, others = read_export(value, place)
            left_out.update(others)
            if line is not None:
                yield conversation_of(line, place)
        elif "messages" in value:
            yield conversation_of(value, place)
        else:
            raise ImportFormatError(
                f"{place}: no known format (it has {keys_of(value)}); write {FORMAT}; or {WRITE_MESSAGES}; or {WRITE_PAIR}"
            )


def _values(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield (place, value) of each line; a JSON list counts as its items."""
    for place, value in read_objects(file):
        if isinstance(value, list):
            yield from ((f"{place}, item {number}", item) for number, item in enumerate(value))
        else:
            yield place, value


def _begins_with(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError as error:
        raise ImportFormatError(f"DATA_PATH {path} cannot be read: {error}") from error
