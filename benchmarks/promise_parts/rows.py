"""Reads and checks the table of promises, `table.yaml`.

Guarantees: a row that is read has a unique id, only known keys, and patterns that compile.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

TABLE = Path(__file__).with_name("table.yaml")
DOCUMENTS = {
    "S0": "a skill page of an agent's collection",
    "S1": "a directory's entry of a skill",
    "S2": "a skill page of another collection, with a scanner's opinion",
    "S3": "the README of the first version",
    "S4": "a catalogue's entry of the project",
}


class TableError(ValueError):
    """The table is invalid; says which row, and what to write."""


@dataclass(frozen=True)
class Row:
    """One promise and how to try it.

    Attributes:
        id: what ``--only`` takes.
        documents: those that make the promise, of `DOCUMENTS`.
        promise: what they say, in a few words.
        type: lines of bash as a user types them in the root of a clone whose environment is active.
        read: pages to look at instead, relative to the root.
        files: what the user has written before, by path.
        works: patterns that the output must have, beside exit status 0, if the line works as promised.
        differs: why it works differently or not at all, where the project decided so.
        line: pattern of the line that tells the user so.
        gateway: the lines ask a gateway; one before a stand-in engine answers.
        slow: takes minutes or a network; left out of the tests.
        needs: program without which the row cannot be tried.
    """

    id: str
    documents: tuple[str, ...]
    promise: str
    type: str = ""
    read: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    works: tuple[str, ...] = ()
    differs: str = ""
    line: str = ""
    gateway: bool = False
    slow: bool = False
    needs: str = ""


def read_table(path: Path = TABLE) -> list[Row]:
    """Return the rows in their order.

    Raises:
        TableError: one is invalid.
    """
    rows = [row_of(each) for each in yaml.safe_load(path.read_text())]
    ids = [row.id for row in rows]
    twice = sorted({each for each in ids if ids.count(each) > 1})
    if twice:
        raise TableError(f"several rows have the id {', '.join(twice)}; give each its own")
    return rows


def row_of(written: dict[str, Any]) -> Row:
    """Return a row of the table.

    Raises:
        TableError: it is invalid.
    """
    name = written.get("id", written)
    unknown = sorted(written.keys() - {each.name for each in fields(Row)})
    if unknown:
        raise TableError(f"row {name} has {', '.join(unknown)}, which no row has; see Row in {__name__}")
    lists = {key: _several(written.get(key)) for key in ("documents", "read", "works")}
    try:
        row = Row(**{**written, **lists})
    except TypeError as error:
        raise TableError(f"row {name}: {error}") from error
    if not row.documents or not set(row.documents) <= DOCUMENTS.keys():
        raise TableError(f"row {name} names the documents {list(row.documents)}; choose from {', '.join(DOCUMENTS)}")
    if bool(row.type) == bool(row.read):
        raise TableError(f"row {name} needs either `type`, lines to type, or `read`, pages to read")
    if bool(row.differs) != bool(row.line):
        raise TableError(f"row {name} needs both `differs`, a reason, and `line`, which tells the user, or neither")
    if not row.differs and not row.works:
        raise TableError(f"row {name} has neither `works` nor `differs`: say what its output must have")
    for pattern in (*row.works, row.line):
        try:
            re.compile(pattern)
        except re.error as error:
            raise TableError(f"row {name}: the pattern {pattern!r} is invalid: {error}") from error
    return row


def _several(value: str | Sequence[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)
