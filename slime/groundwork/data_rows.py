r"""Rows of a data file, one at a time, and the one reader of JSON lines.

Guarantees: only ``\n`` ends a line, because a text in JSON may hold every other line separator. An unreadable path is an
error when `read_file` is called, not at the first row. A slice counts rows, so blank lines of a ``.jsonl`` file do not
count. Whatever a file holds, reading it raises an OSError or ValueError of one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from groundwork.chat_messages import nesting

Row = dict[str, Any]
MAX_DEPTH = 200
TOO_DEEP = f"the JSON nests deeper than {MAX_DEPTH} levels; write flatter values"
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


def read_json(text: str) -> Any:
    """Return the value of a JSON text that other code can walk.

    Raises:
        ValueError: it is not JSON, or nests deeper than `MAX_DEPTH` levels.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    if (
        text.count("[") + text.count("{") > MAX_DEPTH
        and nesting(text.encode("utf-8", "surrogatepass"), MAX_DEPTH) > MAX_DEPTH
    ):
        raise ValueError(TOO_DEEP)
    return value


def read_text(file: Path) -> str:
    """Return the text of a file in UTF-8, with or without a byte order mark.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not UTF-8.
    """
    data = file.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} of {file.name}: the byte {data[error.start]:#04x} is not UTF-8") from error


def json_objects(file: Path) -> Iterator[tuple[int, Row]]:
    """Yield (line number, object) of each line that is not blank.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is not UTF-8, no JSON or no object; the text names it.
    """
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = read_json(line.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n"))
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"line {number} of {file.name}: the byte {line[error.start]:#04x} is not UTF-8"
                ) from error
            except ValueError as error:
                raise ValueError(f"line {number} of {file.name}: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {number} of {file.name}: every row must be an object with columns")
            yield number, row


def _jsonl_rows(file: Path) -> Iterator[Row]:
    return (row for _, row in json_objects(file))


def _parquet_rows(file: Path) -> Iterator[Row]:
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file) as table:
            for batch in table.iter_batches():
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"{file.name} is not a Parquet file: {str(error).partition(chr(10))[0]}") from error


_READERS = {".jsonl": _jsonl_rows, ".parquet": _parquet_rows}
