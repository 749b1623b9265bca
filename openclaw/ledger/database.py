"""One connection to a ledger file: transactions and named errors.

Guarantees: what `transaction` committed survives ``kill -9`` and power loss (write-ahead log, ``synchronous=FULL``).
What it did not commit leaves no trace. Several processes may open the file; a writer waits up to ten seconds for
another. An error names the file and the remedy (`openclaw.ledger.exceptions`), and the next call tries again. A
`Database` may be used from several threads; a lock serialises their transactions. The file must be on a local disk, like
every SQLite write-ahead log.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundwork.private_files import make_private, private, private_folder
from openclaw.ledger import schema
from openclaw.ledger.damage import Log, check_file, lost_transactions, read_log
from openclaw.ledger.exceptions import TransitionError, UnknownRecordError, ledger_error
from openclaw.ledger.records import LESSONS_CHANGED
from openclaw.ledger.schema import OWNERS_PERSON, SAMPLE_MOVES

if TYPE_CHECKING:
    from openclaw.privacy.redactor import Redactor

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_SECONDS = 10.0
CLOSED_PRACTICE = (
    "samples.origin = 'practice' AND NOT EXISTS"
    " (SELECT 1 FROM practice_rounds WHERE practice_rounds.id = samples.practice_round AND NOT closed)"
)
"""Whether a sample is practice whose teacher read other lessons than its person has now."""
# IMMEDIATE takes the write lock at once. A transaction that reads first and writes later fails if another process wrote
# between, however long it waits.
WHOLE = ("BEGIN IMMEDIATE", "COMMIT", ("ROLLBACK",))
PART = ("SAVEPOINT part", "RELEASE part", ("ROLLBACK TO part", "RELEASE part"))


class Database:
    """Owns the connection; the parts of `openclaw.ledger.store.Ledger` query it."""

    def __init__(
        self,
        path: str | Path,
        clock: Callable[[], float] = time.time,
        redaction: Redactor | None = None,
        migrate: Callable[[sqlite3.Connection, Path], None] | None = None,
    ) -> None:
        """Open the ledger at ``path``; create the file and folder if missing, for their owner only.

        Args:
            path: the file.
            clock: seconds since the epoch; tests pass their own.
            redaction: applied to all text before it is stored; None stores it unchanged.
            migrate: gives the file its newest tables, by default a ledger's.

        Raises:
            LedgerVersionError: if a newer version wrote the file.
            LedgerDamagedError: if the file is damaged.
            LedgerUnavailableError: if it cannot be opened now.
        """
        self.path = Path(path)
        self.clock = clock
        self.redaction = redaction
        self._migrate = migrate or schema.migrate
        self.lock = threading.RLock()
        private_folder(self.path.parent)
        # Read the log before SQLite does: it drops a damaged end without a word.
        log = read_log(self.path)
        self._make_private()
        with self.named_errors():
            self.connection = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(log)
            except BaseException:
                self.connection.close()
                raise

    def _make_private(self) -> None:
        """Create the file with mode 0600, or give an existing one that mode; SQLite gives its logs the mode of the file."""
        with suppress(OSError):  # SQLite names what is wrong with the file
            if not self.path.exists():
                open(self.path, "ab", opener=private).close()
        for suffix in ("", "-wal", "-shm"):
            make_private(self.path.with_name(self.path.name + suffix))

    def _prepare(self, log: Log | None) -> None:
        """Set up the connection, check the file and migrate it."""
        self.connection.row_factory = sqlite3.Row
        self.connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_SECONDS * 1000)}")
        self._switch_to_wal()
        # With NORMAL, a power cut may take the last commits of a write-ahead log.
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute("PRAGMA foreign_keys = ON")
        # What is forgotten is overwritten, rather than left in free pages.
        self.connection.execute("PRAGMA secure_delete = ON")
        lost = lost_transactions(log, self.connection, self.path)
        if lost != 0:
            count = "an unknown number of" if lost is None else lost
            logger.error(
                "%s-wal is damaged: the last transactions (%s) are lost; the ledger is in the state before them",
                self.path,
                count,
            )
        check_file(self.connection, self.path)
        self._migrate(self.connection, self.path)

    @contextmanager
    def named_errors(self) -> Generator[None]:
        """Convert SQLite's errors about file and disk to ledger errors."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            named = ledger_error(error, self.path)
            if named is None:
                raise
            raise named from error

    def _switch_to_wal(self) -> None:
        """Switch on the write-ahead log; retry here, because SQLite does not wait for another process."""
        deadline = time.monotonic() + BUSY_TIMEOUT_SECONDS
        while True:
            try:
                self.connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def only_read(self) -> None:
        """Refuse every further write of this connection."""
        self.connection.execute("PRAGMA query_only = ON")

    def close(self) -> None:
        """Close the connection."""
        with self.lock:
            self.connection.close()

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Run the body as one atomic write transaction.

        Inside another transaction of the same thread it is a savepoint: rolled back alone if the body fails, committed
        with the outer transaction.

        Raises:
            TransitionError: if the body makes an illegal state change.
            LedgerUnavailableError: if the transaction is not possible now; nothing of it is in the file.
            LedgerDamagedError: if the body reads a damaged page.
        """
        with self.lock, self.named_errors():
            begin, commit, undo = PART if self.connection.in_transaction else WHOLE
            self.connection.execute(begin)
            try:
                yield self.connection
                self.connection.execute(commit)
            except BaseException as error:
                # SQLite has already rolled back if the disk is full or failed.
                for statement in undo if self.connection.in_transaction else ():
                    self.connection.execute(statement)
                if isinstance(error, sqlite3.IntegrityError) and "illegal " in str(error):
                    raise TransitionError(str(error)) from error
                raise

    def rows(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[sqlite3.Row]:
        """Return all rows of a read-only query."""
        with self.lock, self.named_errors():
            return self.connection.execute(sql, parameters).fetchall()

    def version(self) -> int:
        """Return a number that changes with every commit of another connection to the file."""
        return self.rows("PRAGMA data_version")[0][0]

    def insert(self, connection: sqlite3.Connection, table: str, columns: Mapping[str, Any]) -> int:
        """Insert a row inside a transaction and return its row id."""
        marks = ", ".join("?" for _ in columns)
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"
        return connection.execute(statement, tuple(columns.values())).lastrowid or 0

    def in_transaction(self) -> bool:
        """Return whether this thread is inside a transaction."""
        with self.lock:
            return self.connection.in_transaction

    def turn_row(self, turn_id: str, columns: str = "*") -> sqlite3.Row:
        """Return columns of one turn.

        Raises:
            UnknownRecordError: if the ledger does not hold it.
        """
        rows = self.rows(f"SELECT {columns} FROM turns WHERE id = ?", (turn_id,))
        if not rows:
            raise UnknownRecordError(f"{self.path} holds no turn {turn_id!r}")
        return rows[0]

    def update_one(self, connection: sqlite3.Connection, table: str, row_id: str | int, **columns: Any) -> None:
        """Set columns of the row ``row_id`` inside a transaction.

        Raises:
            UnknownRecordError: if there is no such row.
            TransitionError: naming both states of an illegal change of ``state``.
        """
        assignments = ", ".join(f"{name} = ?" for name in columns)
        statement = f"UPDATE {table} SET {assignments} WHERE id = ?"
        try:
            changed = connection.execute(statement, (*columns.values(), row_id)).rowcount
        except sqlite3.IntegrityError as error:
            if "illegal transition" not in str(error):
                raise
            current = connection.execute(f"SELECT state FROM {table} WHERE id = ?", (row_id,)).fetchone()["state"]
            raise TransitionError(f"{table} {row_id}: {current} -> {columns['state']} is not allowed") from error
        if changed == 0:
            raise UnknownRecordError(f"{table} holds no {row_id!r} in {self.path}")


def sessions_of(person: str) -> tuple[str, tuple[str, ...]]:
    """Return the SQL condition that a turn is of a person (`openclaw.owners.root`), children and episodes included, and its parameters.

    An index finds these turns, the newest ones first, however many others the ledger has.
    """
    return f"{OWNERS_PERSON} = ?1", (person,)


def move_samples(
    connection: sqlite3.Connection, move: str, condition: str, parameters: Sequence[Any] = (), **columns: object
) -> int:
    """Move the samples that meet an SQL condition, and set columns of theirs; return their number.

    Practice that would be ready again is dropped instead if the lessons have changed meanwhile.

    Args:
        connection: in a transaction.
        move: name in `SAMPLE_MOVES`; samples in other states than it starts from stay.
        condition: in SQL.
        parameters: of the condition.
        columns: to set besides the state.
    """
    sources, target, clears = SAMPLE_MOVES[move]
    values = {**dict.fromkeys(clears), **columns, "state": target}
    states = ", ".join(f"'{state}'" for state in sources)
    moved = connection.execute(
        f"UPDATE samples SET {', '.join(f'{name} = ?' for name in values)} WHERE state IN ({states}) AND {condition}",
        (*values.values(), *parameters),
    ).rowcount
    if target == "ready":
        moved -= move_samples(connection, "discard", CLOSED_PRACTICE, reason=LESSONS_CHANGED)
    return moved


def close_practice(connection: sqlite3.Connection, person: str, series: str | None = None) -> None:
    """Let no step use a person's practice any more, except that of ``series``, because what its teacher read has changed.

    What no batch has yet is dropped; what is in one does not return if the batch is undone. The teacher's numbers, which are most
    of a ledger with practice, go with those that no step can use again.
    """
    connection.execute(
        "UPDATE practice_rounds SET closed = 1 WHERE person = ? AND series IS NOT ? AND NOT closed", (person, series)
    )
    move_samples(connection, "discard", f"person = ? AND {CLOSED_PRACTICE}", (person,), reason=LESSONS_CHANGED)
    connection.execute(
        "UPDATE samples SET teacher_topk_log_probs = NULL, teacher_topk_indices = NULL WHERE practice_round IN"
        " (SELECT id FROM practice_rounds WHERE person = ? AND closed) AND +state IN ('trained', 'dropped')"
        " AND teacher_topk_indices IS NOT NULL",
        (person,),
    )
