"""Opening a ledger brings its file to the newest schema, or refuses it.

Guarantees: a file of a newer program is refused, never altered. A file of an older program is copied before it is
changed (``FILE.v1.backup``, named in the log), and changed in one transaction: a crash leaves the old file. Several
processes may open a file at once; one of them migrates it.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

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
    """Bring the open database to `VERSION`; safe when several processes open the file at once.

    Raises:
        LedgerVersionError: when the file was written by a newer program.
    """
    if _version(connection) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)
        if version > VERSION:
            raise LedgerVersionError(
                f"{path} has ledger version {version}, this program writes {VERSION}: "
                "update the program, or name another file with OPENCLAW_LEDGER"
            )
        if 0 < version < VERSION:
            logger.info("%s has ledger version %d; a copy is kept in %s", path, version, back_up(path, version))
        for migration in MIGRATIONS[version:]:
            for statement in statements(migration.statements):
                connection.execute(statement)
            if migration.fill is not None:
                migration.fill(connection)
            logger.info("%s: ledger version %d, %s", path, migration.version, migration.summary)
        if version < VERSION:
            create_triggers(connection)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def create_triggers(connection: sqlite3.Connection) -> None:
    """Make the triggers that hold rows to the tables of `openclaw.ledger.states`, in place of those that are there."""
    for statement in [
        *triggers_sql("turns", VALID_TURN_TRANSITIONS, FIRST_TURN_STATES),
        *triggers_sql("samples", VALID_SAMPLE_TRANSITIONS, FIRST_SAMPLE_STATES),
        *deletion_triggers_sql(),
    ]:
        connection.execute(statement)


def drop_triggers(connection: sqlite3.Connection) -> None:
    """Remove all triggers, to copy rows that are on their way already; `create_triggers` belongs behind it."""
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {name}")


def backup_path(path: Path, version: int) -> Path:
    """Return where the copy of a file of ``version`` is kept."""
    return path.with_name(f"{path.name}.v{version}.backup")


def back_up(path: Path, version: int) -> Path:
    """Copy the committed contents of a ledger to `backup_path` and return that; the caller holds its write lock."""
    target = backup_path(path, version)
    unfinished = target.with_name(f"{target.name}.part")
    unfinished.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as source:
        source.execute("VACUUM INTO ?", (str(unfinished),))
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.replace(target)
    return target


def statements(sql: str) -> Iterator[str]:
    """Yield the single statements of ``sql``."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _version(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]
