"""The maintenance commands of ``openclaw-rl inspect``: forget, check, export, import, salvage.

Guarantees: each command's last line states the result. A command that fails raises LedgerError with what to type, or
OutputError if a file that the user named cannot be written.

``salvage`` copies the readable rows of a damaged ledger to a new one. It reads a copy, so the damaged file is not changed, and the
result passes every check of a ledger. Unreadable rows are counted. A row without its session or turn is kept if its own values
suffice: the session of a turn is recreated, and a used sample becomes a tombstone, so that steps keep their counts. Only damage of
the first page (the list of tables) loses everything.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import struct
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from groundwork.private_files import OutputError, check_output, no_plain_file
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.ledger.codec import decode_sample, decode_turn, decode_verdict
from openclaw.ledger.conversations import import_conversations, write_conversations, write_pictures
from openclaw.ledger.damage import check_file
from openclaw.ledger.exceptions import LedgerDamagedError, LedgerError, UnknownRecordError
from openclaw.ledger.schema import create_triggers, drop_triggers, fill_loss_tokens, fill_people, fill_what_is_counted
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import counted
from openclaw.privacy.redactor import Redactor

# Parents first.
TABLES = (
    "sessions", "turns", "verdicts", "verdict_log", "samples", "steps", "feedback", "forgotten_samples", "forgotten_sessions",
    "episodes", "logs", "decisions", "probe_scores", "pictures", "turn_pictures", "secrets", "people", "lessons", "lesson_turns",
    "lesson_measures", "practice_rounds", "heldout_prompts", "responses", "usage",
)  # fmt: skip
CHILDREN_OF_TURNS = (
    "verdicts",
    "verdict_log",
    "samples",
    "feedback",
    "logs",
    "probe_scores",
    "turn_pictures",
    "lesson_turns",
    "heldout_prompts",
    "responses",
)
HEADER_BYTES = 100
UNKNOWN_ROWS = 1_000_000
"""Number of row ids to try if the file does not reveal their number."""


@dataclass
class Salvage:
    """Rows by table: ``kept``, and ``lost`` (an upper bound if a damaged page hides its number of rows)."""

    kept: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TABLES, 0))
    lost: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TABLES, 0))


def _decode_turn(row: sqlite3.Row) -> None:
    later = dict.fromkeys(("signal", "conversation", "lesson_start", "lesson_end", "plain_middle"))
    decode_turn({**later, "scored": 0, **dict(row)})


def _decode_sample(row: sqlite3.Row) -> None:
    decode_sample({"person": None, "origin": "live", **dict(row)})


READABLE: dict[str, Callable[[sqlite3.Row], Any]] = {
    "turns": _decode_turn,
    "samples": _decode_sample,
    "verdicts": decode_verdict,
}


def salvage(damaged: Path, target: Path, on_progress: Callable[[int, int], None] = lambda done, total: None) -> Salvage:
    """Write the readable rows of ``damaged`` to the new ledger ``target``.

    Args:
        damaged: the file; the intact part of its write-ahead log is used, too.
        target: must not exist.
        on_progress: called with the number of row ids tried and in total.

    Raises:
        LedgerError: if ``target`` exists.
        LedgerDamagedError: if even the list of tables is unreadable.
    """
    if target.exists():
        raise LedgerError(f"{target} exists; name a new file")
    with tempfile.TemporaryDirectory(prefix="salvage-", dir=target.parent) as folder:
        copy = Path(folder) / "damaged.sqlite"
        shutil.copyfile(damaged, copy)
        log = damaged.with_name(f"{damaged.name}-wal")
        if log.exists():
            shutil.copyfile(log, copy.with_name(f"{copy.name}-wal"))
        pad(copy)
        try:
            with closing(sqlite3.connect(copy, isolation_level=None)) as source, closing(Ledger(target)) as ledger:
                source.row_factory = sqlite3.Row
                return _copy_rows(source, ledger, damaged, on_progress)
        except BaseException:
            for ending in ("", "-wal", "-shm"):  # half a ledger is of no use
                target.with_name(f"{target.name}{ending}").unlink(missing_ok=True)
            raise


def pad(path: Path) -> None:
    """Extend a truncated file to the length in its header, because SQLite refuses to read a shorter one."""
    with path.open("r+b") as file:
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return
        page_size, pages = struct.unpack_from(">H", header, 16)[0], struct.unpack_from(">I", header, 28)[0]
        page_size = 65536 if page_size == 1 else page_size
        file.seek(0, 2)
        if file.tell() < page_size * pages:
            file.truncate(page_size * pages)


def _copy_rows(
    source: sqlite3.Connection, ledger: Ledger, damaged: Path, on_progress: Callable[[int, int], None]
) -> Salvage:
    try:
        present = {row["name"] for row in source.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.DatabaseError as error:
        raise LedgerDamagedError(
            f"{damaged}: the list of tables is unreadable ({error}); restore a backup of the file"
        ) from error
    tables = [table for table in TABLES if table in present]
    last = {table: _last_row_id(source, table) for table in tables}
    known = [number for number in last.values() if number is not None]
    bound = max(known, default=UNKNOWN_ROWS)
    limits = {table: bound if number is None else number for table, number in last.items()}
    result = Salvage()
    total, done = sum(limits.values()), 0
    with ledger.transaction() as connection:
        drop_triggers(connection)
        for table in tables:
            for row in _readable_rows(source, table, limits[table], result):
                if _insert(connection, table, row):
                    result.kept[table] += 1
                else:
                    result.lost[table] += 1
                on_progress(min(total, done + result.kept[table] + result.lost[table]), total)
            done += limits[table]
        fill_people(connection)
        fill_what_is_counted(connection)
        fill_loss_tokens(connection)
        create_triggers(connection)
    on_progress(total, total)
    return result


def _last_row_id(source: sqlite3.Connection, table: str) -> int | None:
    """Return the highest possible row id of a table, or None if unknown."""
    for query, parameters in (
        ("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)),
        (f"SELECT MAX(rowid) FROM {table}", ()),
    ):
        try:
            row = source.execute(query, parameters).fetchone()
        except sqlite3.DatabaseError:
            continue
        if row is not None:
            return row[0] or 0
    return None


def _readable_rows(source: sqlite3.Connection, table: str, limit: int, result: Salvage) -> Iterator[sqlite3.Row]:
    """Yield the readable rows of a table; count the others as lost."""
    check = READABLE.get(table)
    for row_id in range(1, limit + 1):
        try:
            row = source.execute(f"SELECT * FROM {table} WHERE rowid = ?", (row_id,)).fetchone()
            if row is None:
                continue
            if check is not None:
                check(row)
        except (sqlite3.Error, ValueError, KeyError, TypeError):
            result.lost[table] += 1
        else:
            yield row


def _insert(connection: sqlite3.Connection, table: str, row: sqlite3.Row) -> bool:
    """Write a row to the new ledger; return False if its parent is lost."""
    values = dict(row)
    if table == "turns":
        connection.execute(
            "INSERT INTO sessions (id, started_at) VALUES (?, ?) ON CONFLICT DO NOTHING",
            (values["session_id"], values["created_at"]),
        )
    if table in CHILDREN_OF_TURNS:
        parent = connection.execute("SELECT 1 FROM turns WHERE id = ?", (values["turn_id"],)).fetchone()
        if parent is None:
            if table == "samples" and values["state"] in ("leased", "trained"):
                connection.execute(
                    "INSERT INTO forgotten_samples (id, rollout_id, forgotten_at) VALUES (?, ?, ?)",
                    (values["id"], values["rollout_id"], values["created_at"]),
                )
            return False
    names = ", ".join(values)
    marks = ", ".join("?" for _ in values)
    try:
        connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))
    except sqlite3.IntegrityError:
        return False
    return True


@contextmanager
def progress_bar(title: str) -> Generator[Callable[[int, int], None]]:
    """Show a bar on a terminal's standard error; yield the function to call with (done, total)."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def forget_command(options: argparse.Namespace) -> Iterable[str]:
    """Delete a session and its bytes."""
    with closing(Ledger(options.ledger)) as ledger:
        try:
            gone = ledger.sessions.forget(options.session_id)
        except UnknownRecordError:
            raise UnknownRecordError(f"no session {options.session_id!r}; --turns lists them") from None
        yield f"deleted {counted(gone.turns, 'turn')} and {counted(gone.samples, 'sample')} of {options.session_id!r}"
        for backup in ledger.sessions.erase():
            yield f"deleted {backup}, a backup of the file from before a migration"
        if gone.trained:
            yield f"{gone.trained} of the samples had been trained; weights and checkpoints that learned from them remain"
        yield "the file and the .jsonl files beside it hold no byte of the session any more; exports, logs and other copies are not searched"


def check_command(options: argparse.Namespace) -> Iterable[str]:
    """Read the whole file."""
    with closing(Ledger(options.ledger)) as ledger, ledger.transaction() as connection:
        check_file(connection, options.ledger, None)
        wrong = connection.execute("PRAGMA foreign_key_check").fetchall()
    yield f"{options.ledger} is sound" if not wrong else f"{options.ledger}: {len(wrong)} rows refer to missing rows"


def import_command(options: argparse.Namespace) -> Iterable[str]:
    """Add conversations of a file."""
    mode = RuntimeVariables.from_env().redact
    redactor = None if mode == "off" else Redactor(mode)
    with closing(Ledger(options.ledger, redaction=redactor)) as ledger, progress_bar("importing") as on_progress:
        result = import_conversations(ledger, options.file, on_progress)
    yield f"added {counted(result.added, 'turn')} of {counted(result.sessions, 'session')}; {result.known} were already there"
    yield f"imported turns are for reading and export; to train from the file, start a run with DATA_PATH={options.file}"


def export_command(options: argparse.Namespace) -> Iterable[str]:
    """Write all conversations to a file, and their pictures beside it."""
    check_output(options.file, options.ledger)
    beside = None if no_plain_file(options.file) else options.file.with_name(f"{options.file.name}.pictures")
    with closing(Ledger(options.ledger)) as ledger, progress_bar("exporting") as on_progress:
        count = write_conversations(ledger, options.file, on_progress)
        try:
            pictures = sum(1 for _ in ledger.pictures.files()) if beside is None else write_pictures(ledger, beside)
        except OSError as error:
            raise OutputError(f"{beside} cannot be written: {error.strerror}; name another file") from error
    lines = [f"wrote {counted(count, 'session')} to {options.file}"]
    if pictures:
        where = f"wrote {counted(pictures, 'picture')} to {beside}"
        lines.append(
            where if beside else f"{counted(pictures, 'picture')} left out; name a file, and they come beside it"
        )
    if beside is None:  # whoever reads the conversations reads no other line
        print(*lines, sep="\n", file=sys.stderr)
        return
    yield from lines


def salvage_command(options: argparse.Namespace) -> Iterable[str]:
    """Copy what can be read to a new file."""
    check_output(options.target)
    with progress_bar("reading") as on_progress:
        result = salvage(options.ledger, options.target, on_progress)
    for table in TABLES:
        lost = f", up to {result.lost[table]} lost" if result.lost[table] else ""
        yield f"{table:18} {result.kept[table]:7} kept{lost}"
    yield f"to continue with the new file, set OPENCLAW_LEDGER={options.target}"


COMMANDS: Mapping[str, Callable[[argparse.Namespace], Iterable[str]]] = {
    "forget": forget_command,
    "check": check_command,
    "export": export_command,
    "import": import_command,
    "salvage": salvage_command,
}
