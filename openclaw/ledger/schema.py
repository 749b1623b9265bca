"""Migrates a ledger file to the newest schema when it is opened.

Guarantees: a file of a newer version is refused and never changed. A file of an older version is backed up
(``FILE.v1.backup``, named in the log) and migrated in one transaction, so a crash leaves the old file. If several
processes open a file at once, one of them migrates it.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from groundwork.private_files import private
from openclaw.ledger.exceptions import LedgerVersionError
from openclaw.ledger.migrations import MIGRATIONS, VERSION
from openclaw.ledger.states import (
    FIRST_SAMPLE_STATES,
    FIRST_TURN_STATES,
    VALID_SAMPLE_TRANSITIONS,
    VALID_TURN_TRANSITIONS,
    deletion_triggers_sql,
    triggers_sql,
)

logger = logging.getLogger(__name__)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Migrate the open database to `VERSION`; safe for several processes at once.

    Raises:
        LedgerVersionError: if a newer version wrote the file.
    """
    if _version(connection) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)
        if version > VERSION:
            raise LedgerVersionError(
                f"{path} has ledger version {version}, but this program supports {VERSION}: "
                "update the program, or name another file with OPENCLAW_LEDGER"
            )
        if 0 < version < VERSION:
            logger.info("%s has ledger version %d; backed up to %s", path, version, back_up(path, version))
        for migration in [each for each in MIGRATIONS if each.version > version]:
            for statement in statements(migration.statements):
                connection.execute(statement)
            if migration.fill is not None:
                migration.fill(connection)
            if version:  # a new file is not news
                logger.info("%s: ledger version %d, %s", path, migration.version, migration.summary)
        if version < VERSION:
            create_triggers(connection)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def create_triggers(connection: sqlite3.Connection) -> None:
    """Replace the triggers that enforce the tables of `openclaw.ledger.states`."""
    for statement in [
        *triggers_sql("turns", VALID_TURN_TRANSITIONS, FIRST_TURN_STATES),
        *triggers_sql("samples", VALID_SAMPLE_TRANSITIONS, FIRST_SAMPLE_STATES),
        *deletion_triggers_sql(),
    ]:
        connection.execute(statement)


def drop_triggers(connection: sqlite3.Connection) -> None:
    """Remove all triggers, to copy rows in any state; call `create_triggers` afterwards."""
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")


def backup_path(path: Path, version: int) -> Path:
    """Return the path of the backup of a file of ``version``."""
    return path.with_name(f"{path.name}.v{version}.backup")


def back_up(path: Path, version: int) -> Path:
    """Copy a ledger's committed contents to `backup_path` and return it; the caller holds the write lock."""
    target = backup_path(path, version)
    unfinished = target.with_name(f"{target.name}.part")
    unfinished.unlink(missing_ok=True)
    open(unfinished, "wb", opener=private).close()  # SQLite fills an empty file
    with closing(sqlite3.connect(path, isolation_level=None)) as source:
        source.execute("VACUUM INTO ?", (str(unfinished),))
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.replace(target)
    return target


def statements(sql: str) -> Iterator[str]:
    """Yield the statements of ``sql`` one by one."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _version(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]
