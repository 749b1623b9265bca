"""The ledger as JSON lines for people and scripts: a line per turn, and a line per verdict, as they are committed.

``LEDGER.conversations.jsonl`` and ``LEDGER.verdicts.jsonl`` lie beside the ledger, with its name without the suffix:
``ledger.conversations.jsonl``. A line is one JSON object, and its ``number`` grows. What the ledger redacts is redacted here,
since lines are made of its rows.

Guarantees:

* Writing happens in a thread with a connection of its own, after the commit. No request waits for it, and no failure of it
  reaches one; it is tried again. However much there is to write, the thread is idle for most of the time.
* The position is the last line itself. After a kill at any moment the next process removes a torn line and goes on, so
  every turn has one line, and every verdict, too. A verdict that a later one replaced before it was written has none.
* A line of a deleted turn goes with it: `erase_lines` leaves only lines whose turn the ledger holds. Appending and erasing
  exclude each other, in any processes.
* Files have mode 0600. Each is at most ``most_bytes`` large together with its older half, ``FILE.1``, except for one line.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from groundwork.private_files import private
from openclaw.ledger.database import BUSY_TIMEOUT_SECONDS

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
IDLE_SHARE = 4.0
"""Seconds of rest for each second of writing."""
CLOSE_SECONDS = 5.0
BATCH_ROWS = 32
BLOCK_BYTES = 1 << 16
BEGIN = b'{"number": '
Line = Callable[[sqlite3.Row], str]


def _time(seconds: float) -> str:
    return json.dumps(datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds"))


def _turn_line(row: sqlite3.Row) -> str:
    """Return the line of a turn; messages stay the JSON text that the ledger stores."""
    return (
        f'{{"number": {row["number"]}, "turn": {json.dumps(row["id"])}, "session_id": {json.dumps(row["session_id"])}'
        f', "time": {_time(row["finished_at"])}, "type": "{row["kind"]}", "prompt": {row["messages"]}'
        f', "response": {row["response_message"]}, "finish_reason": {json.dumps(row["finish_reason"])}'
        f', "tools": {row["tools"]}, "weight_versions": {row["weight_versions"]}}}'
    )


def _verdict_line(row: sqlite3.Row) -> str:
    """Return the line of a verdict: what it is about, then its own fields (`Verdict.to_dict`)."""
    return (
        f'{{"number": {row["number"]}, "turn": {json.dumps(row["id"])}, "session_id": {json.dumps(row["session_id"])}'
        f', "time": {_time(row["judged_at"])}, "next_state": {row["next_state"] or "null"}'
        f', "reason": {json.dumps(row["reason"])}, {row["verdict"][1:]}'
    )


@dataclass(frozen=True)
class Kind:
    """One of the two files.

    Attributes:
        suffix: replaces that of the ledger.
        numbers: SQL of the numbers whose lines may stay, ascending.
        newest: SQL of the highest number that was ever given, even to a deleted row.
        rows: SQL of the rows after a number, ascending.
        line: of a row.
    """

    suffix: str
    numbers: str
    newest: str
    rows: str
    line: Line


KINDS = (
    Kind(
        ".conversations.jsonl",
        "SELECT number FROM turns ORDER BY number",
        "SELECT seq FROM sqlite_sequence WHERE name = 'turns'",
        "SELECT number, id, session_id, finished_at, kind, messages, response_message, finish_reason, tools, weight_versions"
        " FROM turns WHERE number > ? ORDER BY number LIMIT ?",
        _turn_line,
    ),
    Kind(
        ".verdicts.jsonl",
        "SELECT number FROM verdict_log ORDER BY number",
        "SELECT seq FROM sqlite_sequence WHERE name = 'verdict_log'",
        "SELECT verdict_log.number, turns.id, session_id, verdict_log.judged_at, next_state, reason, verdict FROM verdict_log"
        " JOIN verdicts USING (turn_id, judged_at) JOIN turns ON turns.id = turn_id"
        " WHERE verdict_log.number > ? ORDER BY verdict_log.number LIMIT ?",
        _verdict_line,
    ),
)


def record_paths(ledger: Path) -> list[Path]:
    """Return the files of conversations and of verdicts beside a ledger."""
    return [ledger.with_suffix(kind.suffix) for kind in KINDS]


def older(path: Path) -> Path:
    """Return the older half of a file."""
    return path.with_name(f"{path.name}.1")


@contextmanager
def _locked(path: Path) -> Generator[IO[bytes]]:
    """Open a file for reading and appending, which nobody else appends to, rotates or replaces meanwhile."""
    while True:
        with open(path, "a+b", opener=private) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.stat(path).st_ino == os.fstat(file.fileno()).st_ino:
                    yield file
                    return


class RecordFiles:
    """The thread that writes both files; see the module's guarantees."""

    def __init__(self, ledger: Path, most_bytes: int) -> None:
        """Prepare for the ledger at ``ledger``, which exists; `start` starts."""
        self._ledger = ledger
        self._most_bytes = most_bytes
        self._stop = threading.Event()
        self._failing = False
        self._positions: dict[Kind, tuple[int, int]] = {}  # inode of each file, and the number of its last line
        self._thread = threading.Thread(target=self._run, name="record-files", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Write what is committed, for up to `CLOSE_SECONDS`, and end the thread; the next process writes the rest."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        began = False
        while True:
            last = self._stop.is_set()
            try:
                if not began:
                    self._adopt()
                    began = True
                self.follow(self._out_of_time() if last else self._rest)
            except (OSError, sqlite3.Error) as error:
                if not self._failing:
                    logger.error("lines beside %s are not written now; they will be later: %s", self._ledger, error)
                self._failing = True
            else:
                self._failing = False
            if last:
                return
            self._stop.wait(POLL_SECONDS)

    def _adopt(self) -> None:
        """Set aside files of another ledger, and finish a deletion that a kill interrupted."""
        with closing(_reader(self._ledger)) as reader:
            for kind in KINDS:
                path = self._ledger.with_suffix(kind.suffix)
                if not path.exists():
                    continue
                newest = reader.execute(kind.newest).fetchone()
                with _locked(path) as file:
                    if _last_number(file) > (newest[0] if newest else 0):
                        aside = path.with_name(f"{path.name}.{int(time.time())}")
                        path.rename(aside)
                        logger.warning("%s is of another ledger; renamed to %s", path, aside)
        erase_lines(self._ledger)

    def _rest(self, seconds: float) -> bool:
        """Rest after ``seconds`` of writing; return whether the thread is to end."""
        return self._stop.wait(IDLE_SHARE * seconds)

    def _out_of_time(self) -> Callable[[float], bool]:
        deadline = time.monotonic() + CLOSE_SECONDS
        return lambda seconds: time.monotonic() > deadline

    def follow(self, after_batch: Callable[[float], bool] = lambda seconds: False) -> int:
        """Write the lines of what was committed since the last call, and return their number.

        Args:
            after_batch: called with the seconds that each batch took; returns whether to leave the rest for later.
        """
        count = 0
        with closing(_reader(self._ledger)) as reader:
            for kind in KINDS:
                began = time.monotonic()
                while batch := self._append(reader, kind):
                    count += batch
                    if after_batch(time.monotonic() - began):
                        return count
                    began = time.monotonic()
        return count

    def _append(self, reader: sqlite3.Connection, kind: Kind) -> int:
        """Append the next lines of a file, and return their number; rows are read inside the lock, see `erase_lines`."""
        path = self._ledger.with_suffix(kind.suffix)
        with _locked(path) as file:
            inode = os.fstat(file.fileno()).st_ino
            known, number = self._positions.get(kind, (None, 0))
            if known != inode:
                number = _last_number(file) or _last_number_of(older(path))
            rows = reader.execute(kind.rows, (number, BATCH_ROWS)).fetchall()
            if rows:
                file.write("".join(f"{kind.line(row)}\n" for row in rows).encode())
                file.flush()
                number = rows[-1]["number"]
            self._positions[kind] = inode, number
            if os.fstat(file.fileno()).st_size > self._most_bytes // 2:
                path.rename(older(path))
                del self._positions[kind]
        return len(rows)


def erase_lines(ledger: Path) -> int:
    """Remove the lines of turns that the ledger does not hold, and return their number.

    Call it after a deletion has been committed. A writer reads its rows while it holds the file, so it has either written
    them before, or does not see them any more.

    Raises:
        OSError: a file cannot be written again; it still has all lines.
    """
    count = 0
    for kind in KINDS:
        path = ledger.with_suffix(kind.suffix)
        if not path.exists() and not older(path).exists():
            continue
        with _locked(path), closing(_reader(ledger)) as reader:
            for part in (older(path), path):
                if part.exists():
                    count += _erase(part, reader, kind)
    return count


def _erase(path: Path, reader: sqlite3.Connection, kind: Kind) -> int:
    """Write a file again without the lines of deleted rows, if it has any; return their number."""
    gone = sum(1 for _, kept in _judged(path, reader, kind) if not kept)
    if not gone:
        return 0
    part = path.with_name(f"{path.name}.part")
    with open(part, "wb", opener=private) as file:
        file.writelines(line for line, kept in _judged(path, reader, kind) if kept)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    return gone


def _judged(path: Path, reader: sqlite3.Connection, kind: Kind) -> Iterator[tuple[bytes, bool]]:
    """Yield each line of a file, and whether the ledger holds its row; both come in the order of their numbers."""
    numbers = (row[0] for row in reader.execute(kind.numbers))
    held = next(numbers, None)
    with path.open("rb") as file:
        for line in file:
            number = _number(line)
            while number is not None and held is not None and held < number:
                held = next(numbers, None)
            yield line, number is not None and held == number


def _reader(ledger: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(ledger, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)
    connection.row_factory = sqlite3.Row
    return connection


def _last_number_of(path: Path) -> int:
    try:
        with path.open("r+b") as file:
            return _last_number(file)
    except FileNotFoundError:
        return 0


def _last_number(file: IO[bytes]) -> int:
    """Return the number of the last whole line, 0 without any; what follows it is cut off."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = _start_of_line(file, end)
        file.seek(start)
        line = file.read(end - start)
        if line.endswith(b"\n") and (number := _number(line)) is not None and _is_whole(line):
            return number
        logger.warning("%s: its last line is torn, and is written again", file.name)
        file.truncate(start)
        end = file.seek(0, os.SEEK_END)
    return 0


def _start_of_line(file: IO[bytes], end: int) -> int:
    """Return where the line that ends at ``end`` starts."""
    stop = end - 1  # its own line break, if it has one
    while stop > 0:
        start = max(0, stop - BLOCK_BYTES)
        file.seek(start)
        place = file.read(stop - start).rfind(b"\n")
        if place >= 0:
            return start + place + 1
        stop = start
    return 0


def _number(line: bytes) -> int | None:
    """Return the number at the beginning of a line, or None."""
    digits = line[len(BEGIN) : line.find(b",")]
    return int(digits) if line.startswith(BEGIN) and digits.isdigit() else None


def _is_whole(line: bytes) -> bool:
    try:
        value: Any = json.loads(line)
    except ValueError:
        return False
    return isinstance(value, dict)
