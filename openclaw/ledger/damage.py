"""Detects damage of a ledger file and its write-ahead log when the file is opened.

Guarantees: a file of at most `CHECK_BYTES` is read completely (``PRAGMA quick_check``, half a second if cached). Of a
larger file SQLite checks the length, and damaged pages show up when they are read. Transactions of the write-ahead log
that SQLite skips because of wrong checksums are counted. Not detected: changed values in a well-formed page, and a
deleted log.
"""

from __future__ import annotations

import sqlite3
import struct
from dataclasses import dataclass
from pathlib import Path

from openclaw.ledger.exceptions import damaged

CHECK_BYTES = 2**30
LOG_MAGIC = (0x377F0682, 0x377F0683)
# https://www.sqlite.org/fileformat.html#the_write_ahead_log, big-endian
LOG_HEADER = struct.Struct(">8I")  # magic, format, page size, sequence, salt, salt, checksum, checksum
FRAME_HEADER = struct.Struct(">6I")  # page, pages after the commit or 0, salt, salt, checksum, checksum


@dataclass(frozen=True)
class Log:
    """A write-ahead log on disk.

    Attributes:
        salts: of the header; None if the header is unreadable.
        commits: numbers of the frames that end a transaction, from 1.
    """

    salts: tuple[int, int] | None
    commits: tuple[int, ...]


def check_file(connection: sqlite3.Connection, path: Path, limit: int | None = CHECK_BYTES) -> None:
    """Raise LedgerDamagedError if an open file of at most ``limit`` bytes (None: any size) is malformed."""
    if limit is not None and path.stat().st_size > limit:
        return
    finding = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if finding != "ok":
        raise damaged(path, " ".join(finding.split()))


def read_log(path: Path) -> Log | None:
    """Return the write-ahead log of the ledger ``path``, or None if it is missing or empty."""
    try:
        file = path.with_name(f"{path.name}-wal").open("rb")
    except FileNotFoundError:
        return None
    with file:
        header = file.read(LOG_HEADER.size)
        if not header:
            return None
        if len(header) < LOG_HEADER.size:
            return Log(None, ())
        magic, _, page_size, _, *salts = LOG_HEADER.unpack(header)[:6]
        if magic not in LOG_MAGIC:
            return Log(None, ())
        commits: list[int] = []
        number = 1
        while len(frame := file.read(FRAME_HEADER.size)) == FRAME_HEADER.size:
            _, commit, *frame_salts = FRAME_HEADER.unpack(frame)[:4]
            if frame_salts != salts:
                break
            if commit:
                commits.append(number)
            file.seek(page_size, 1)
            number += 1
    return Log((salts[0], salts[1]), tuple(commits))


def lost_transactions(before: Log | None, connection: sqlite3.Connection, path: Path) -> int | None:
    """Return the number of log transactions that SQLite could not read; None if the log's header is damaged.

    Args:
        before: `read_log` before the connection was opened.
        connection: to the ledger.
        path: of the ledger.
    """
    if before is None:
        return 0
    readable = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1]
    if before.salts is None:
        return None if readable <= 0 else 0
    after = read_log(path)
    if after is None or after.salts != before.salts:
        return 0
    return sum(commit > readable for commit in before.commits)
