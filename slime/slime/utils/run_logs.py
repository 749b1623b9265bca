"""The logs of a run's folder: keep those of two runs apart, and write what the terminal shows to ``logs/training.log``.

Guarantee: no line of a log is lost, and files that the run does not write itself stay as they are. A log that another run
set aside before is replaced. What cannot be logged never stops a run. The process owns one training log at a time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path

from groundwork.private_files import make_private, private, private_folder

OLDER = ".1"
TIME = "%Y-%m-%d %H:%M:%S"
TRAINING_LOG = "training.log"
CHECKOUT = Path(__file__).resolve().parents[3]
"""The repository, where this package is not installed elsewhere."""
NEWEST = "logs"
"""The link in the repository that leads to the logs of the newest run."""
OWN = ("logs/*.log", "runtime.log")
"""The logs that a run writes into its folder: those of its processes, and that of a data source's own process."""


def begin_logs(run_dir: Path, *, resumes: bool, command: Sequence[str] = sys.argv) -> None:
    """Rename the logs of an older run in this folder to ``NAME.log.1``; a run that resumes marks its begin in them instead.

    Args:
        run_dir: the run's folder; its logs are `OWN`.
        resumes: whether the run continues the one in the folder.
        command: of this run, for the mark.
    """
    mark = f"===== {datetime.now():{TIME}} resumed: {shlex.join(command)} =====\n"
    for log in sorted(path for pattern in OWN for path in run_dir.glob(pattern)):
        if os.path.samestat(log.stat(), os.fstat(1)) or not log.stat().st_size:
            continue  # this process's own output, which has begun already
        make_private(log)
        if resumes:
            with log.open("a") as file:
                file.write(mark)
        else:
            log.replace(log.with_name(log.name + OLDER))


def say(text: str) -> None:
    """Print a line for the user and flush it; the training log gets it too."""
    print(text, flush=True)
    note(text)


_with_info: ContextVar[bool] = ContextVar("_with_info", default=False)


@contextmanager
def with_info() -> Iterator[None]:
    """Let the training log take what this thread logs as INFO during the block; for plugins that run in the driver."""
    token = _with_info.set(True)
    try:
        yield
    finally:
        _with_info.reset(token)


class TrainingLog(logging.Handler):
    """The training log of a run: what this process says to the user, its warnings, and its errors with their tracebacks.

    Of other records it takes those of threads in `with_info`.
    """

    def __init__(self, run_dir: Path) -> None:
        """Begin the file, so that a reader can follow it before there is a line.

        Raises:
            OSError: it cannot be written.
        """
        super().__init__(logging.INFO)
        self.level_before = logging.getLogger().level
        self.path = run_dir / "logs" / TRAINING_LOG
        private_folder(self.path.parent)
        self.write("")

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is for this log; called in the thread that made it."""
        return (record.levelno >= logging.WARNING or _with_info.get()) and bool(super().filter(record))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record of this process's loggers."""
        note(f"{record.levelname.lower()}: {self.format(record)}")

    def write(self, text: str) -> None:
        """Append lines, each with the time."""
        now = f"{datetime.now():{TIME}}"
        with open(self.path, "a", encoding="utf-8", errors="replace", opener=private) as file:
            file.write("".join(f"{now} {line}\n" for line in text.splitlines()))


_training_log: TrainingLog | None = None


def note(text: str) -> None:
    """Write what the terminal shows to the training log, if there is one. If the file fails, say so once and go on without it."""
    global _training_log
    log = _training_log
    if log is None:
        return
    try:
        log.write(text)
    except OSError as error:
        _training_log = None
        print(f"warning: {log.path} cannot be written ({error.strerror}); the terminal has the rest", file=sys.stderr)


def begin_training_log(run_dir: Path) -> None:
    """Write what this process says from now on to ``logs/training.log`` of a run, until `ended_training_log` ends.

    The link ``logs`` of the repository then leads to the run's logs; a folder of that name stays.
    """
    global _training_log
    try:
        _training_log = TrainingLog(run_dir)
    except OSError as error:
        print(f"warning: no {TRAINING_LOG} ({error.strerror}); the terminal has its lines", file=sys.stderr)
        return
    root = logging.getLogger()
    if not root.handlers and logging.lastResort is not None:
        root.addHandler(logging.lastResort)  # with a handler at the root, Python does not print warnings by itself
    root.addHandler(_training_log)
    root.setLevel(logging.INFO)  # the handlers choose; `lastResort` takes warnings only
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line per request
    if (CHECKOUT / "pyproject.toml").is_file():
        _link_newest(CHECKOUT / NEWEST, _training_log.path.parent)


@contextmanager
def ended_training_log() -> Iterator[None]:
    """End the training log with the block."""
    global _training_log
    try:
        yield
    finally:
        _training_log = None
        root = logging.getLogger()
        for handler in [item for item in root.handlers if isinstance(item, TrainingLog)]:
            root.removeHandler(handler)
            root.setLevel(handler.level_before)


def _link_newest(link: Path, logs: Path) -> None:
    """Let a link lead to the logs of the newest run, in one step; whoever reads those of another run goes on reading them."""
    if link.exists() and not link.is_symlink():
        return
    part = link.with_name(f".{link.name}.{os.getpid()}")
    try:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        part.symlink_to(logs.absolute())
        part.replace(link)
    except OSError as error:
        print(f"warning: {link} does not lead to this run's logs: {error.strerror}", file=sys.stderr)
