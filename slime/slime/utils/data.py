"""Rows of a data file, one at a time.

Guarantees: an unreadable path is an error when `read_file` is called, not at the first row. A slice counts rows, so
blank lines of a ``.jsonl`` file do not count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

Row = dict[str, Any]
_SLICE = re.compile(r"^(?P<path>.+)@\[(?P<start>(?:-?\d+)?):(?P<end>(?:-?\d+)?)\]$")


def split_slice(path: str) -> tuple[str, int | None, int | None]:
    """Split ``path@[start:end]`` into the path and its bounds; a missing bound is None."""
    match = _SLICE.match(path)
    if match is None:
        return path, None, None
    start, end = (int(match[name]) if match[name] else None for name in ("start", "end"))
    return match["path"], start, end


def read_file(path: str) -> Iterator[Row]:
    """Return the rows of a ``.jsonl`` or ``.parquet`` file; ``path@[start:end]`` slices them like a Python list.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the suffix is another one or, while reading, a line is not a JSON object.
    """
    name, start, end = split_slice(str(path))
    file = Path(name)
    if not file.is_file():
        raise FileNotFoundError(f"{name}: no such file")
    if file.suffix not in _READERS:
        raise ValueError(f"{name}: use a .jsonl or .parquet file")
    rows = _READERS[file.suffix]
    if (start or 0) < 0 or (end or 0) < 0:
        start, end, _ = slice(start, end).indices(sum(1 for _ in rows(file)))
    return islice(rows(file), start, end)


def _jsonl_rows(file: Path) -> Iterator[Row]:
    with file.open(encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number} of {file.name}: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {number} of {file.name}: every row must be an object with columns")
            yield row


def _parquet_rows(file: Path) -> Iterator[Row]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(file) as table:
        for batch in table.iter_batches():
            yield from batch.to_pylist()


_READERS = {".jsonl": _jsonl_rows, ".parquet": _parquet_rows}
