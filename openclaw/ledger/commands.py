"""The maintenance commands of ``openclaw-rl inspect``: forget, check, export, import, salvage.

Guarantees: each command's last line states the result. A command that fails raises LedgerError with what to type, or
OutputError if a file that the user named cannot be written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing, contextmanager

from rich.console import Console
from rich.progress import Progress

from groundwork.private_files import OutputError, check_output, no_plain_file
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.ledger.conversations import import_conversations, write_conversations, write_pictures
from openclaw.ledger.damage import check_file
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.salvage import TABLES, salvage
from openclaw.ledger.store import Ledger
from openclaw.ledger.views import counted
from openclaw.privacy.redactor import Redactor


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
    told = [f"wrote {counted(count, 'session')} to {options.file}"]
    if pictures:
        where = f"wrote {counted(pictures, 'picture')} to {beside}"
        told.append(
            where if beside else f"{counted(pictures, 'picture')} left out; name a file, and they come beside it"
        )
    if beside is None:  # whoever reads the conversations reads no other line
        print(*told, sep="\n", file=sys.stderr)
        return
    yield from told


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
