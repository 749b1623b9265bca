"""The durable record of the process groups that environments own (SQLite, fsync on every commit).

Guarantees: a group is on disk before its program starts, and stays there until it has ended. One server at a time uses
a file; the kernel frees it when that server dies. The file is private. All work runs in one thread of its own, so a slow
disk never blocks the event loop.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.exceptions import InfraError
from agentrl.processes.marks import Mark
from groundwork.exceptions import ConfigError
from groundwork.private_files import private, private_folder

TABLE = "CREATE TABLE IF NOT EXISTS groups (secret TEXT, pid INTEGER, ticks INTEGER, boot TEXT)"
POOL = "CREATE TABLE IF NOT EXISTS pool (name TEXT)"


class Group(NamedTuple):
    """A process group, named by its leader, and the secret of the lease that owns it."""

    secret: str
    leader: Mark


class ProcessLedger:
    """The open file; `close` frees it.

    Attributes:
        path: of the file.
        pool: a random name that stays the file's own, for what a server starts outside this machine's processes.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises:
            ConfigError: another server uses it, or it is not a ledger.
        """
        self.path = path
        try:
            private_folder(path.absolute().parent)
            self._lock = private(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(
                f"--ledger {path}: {error.strerror}; name a file in a folder that you can write"
            ) from error
        self._thread = ThreadPoolExecutor(1, "process-ledger")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._rows, self.pool = self._thread.submit(self._open).result()
        except OSError as error:
            self._give_up()
            raise ConfigError(f"--ledger {path} is in use by another server; name another file") from error
        except sqlite3.DatabaseError as error:
            self._give_up()
            raise ConfigError(f"--ledger {path}: {error}; name another file, or move this one away") from error

    async def add(self, group: Group) -> None:
        """Record a group; it is on disk afterwards.

        Raises:
            InfraError: the disk does not take it.
        """
        await self._do("INSERT INTO groups VALUES (?, ?, ?, ?)", (group.secret, *group.leader))

    async def remove(self, groups: Sequence[Group]) -> None:
        """Forget groups that have ended."""
        pairs = [(group.secret, group.leader.pid) for group in groups]
        await self._do("DELETE FROM groups WHERE secret = ? AND pid = ?", *pairs)

    async def groups(self) -> list[Group]:
        """Return all recorded groups."""
        found = await self._do("SELECT secret, pid, ticks, boot FROM groups", ())
        return [Group(secret, Mark(pid, ticks, boot)) for secret, pid, ticks, boot in found]

    def close(self) -> None:
        """Close the file, and let another server use it."""
        self._thread.submit(self._rows.close).result()
        self._give_up()

    def _give_up(self) -> None:
        self._thread.shutdown()
        os.close(self._lock)

    def _open(self) -> tuple[sqlite3.Connection, str]:
        os.close(private(str(self.path), os.O_RDWR | os.O_CREAT))
        rows = sqlite3.connect(self.path)
        rows.execute("PRAGMA journal_mode=WAL")
        rows.execute("PRAGMA synchronous=FULL")
        rows.execute(TABLE)
        rows.execute(POOL)
        rows.execute("INSERT INTO pool SELECT ? WHERE NOT EXISTS (SELECT * FROM pool)", (secrets.token_hex(16),))
        rows.commit()
        return rows, rows.execute("SELECT name FROM pool").fetchone()[0]

    async def _do(self, statement: str, *values: Sequence[str | int]) -> list[tuple[Any, ...]]:
        """Execute a statement for each of ``values`` in one transaction; return all rows.

        The cursor is closed in the thread. One that ends elsewhere resets a statement that the thread may be using for
        another call, since a connection keeps its statements.
        """

        def committed() -> list[tuple[Any, ...]]:
            with self._rows, closing(self._rows.cursor()) as cursor:
                return [row for each in values for row in cursor.execute(statement, each)]

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, committed)
        except sqlite3.Error as error:
            raise InfraError(f"the ledger {self.path} cannot be used: {error}", code="ledger_failed") from error
