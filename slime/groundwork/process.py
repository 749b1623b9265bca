"""Child processes that cannot outlive their parent.

Guarantee: a process started by :func:`spawn` leads its own session and process group. The whole group ends soon after
the parent, however the parent ended (``SIGKILL`` included). The parent holds the write end of a pipe and the child
blocks on the read end (:func:`watch_lifeline`); end of file means that the parent died. Processes are only ever ended
by the id recorded here, never by name.

The :class:`ChildProcess` that ``spawn`` returns owns the pipe, the log file and the group.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from groundwork.private_files import private, private_folder

logger = logging.getLogger(__name__)

LIFELINE_VARIABLE = "SLIME_LIFELINE_FD"
LIFELINE_THREAD = "lifeline"
GRACE_SECONDS = 2.0
KILLED_SECONDS = 10.0
_POLL_SECONDS = 0.05


class ChildProcess:
    """A running child with its own process group; ``stop`` ends the group and reaps the child."""

    def __init__(self, popen: subprocess.Popen[bytes], lifeline: int, name: str, log_path: Path | None) -> None:
        self._popen = popen
        self._lifeline: int | None = lifeline
        self.name = name
        self.log_path = log_path

    @property
    def pid(self) -> int:
        """Process id, which is also the id of the process group."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """Exit status (negative: the signal), or None while the child runs."""
        return self._popen.poll()

    def alive(self) -> bool:
        """Return whether the child itself still runs."""
        return self.returncode is None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the child to end and return its exit status; raise ``subprocess.TimeoutExpired`` after ``timeout``."""
        return self._popen.wait(timeout)

    def stop(self, timeout: float = 10.0) -> int:
        """End the group with SIGTERM, after ``timeout`` seconds with SIGKILL; return the exit status."""
        signal_group(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and (self.alive() or group_alive(self.pid)):
            time.sleep(_POLL_SECONDS)
        return self.kill()

    def kill(self) -> int:
        """Kill the rest of the group, reap the child and return its exit status.

        Afterwards the group is gone, unless the kernel takes more than ``KILLED_SECONDS``, which is logged.
        """
        signal_group(self.pid, signal.SIGKILL)
        status = self._popen.wait()
        deadline = time.monotonic() + KILLED_SECONDS  # the kernel needs a moment for a process with much memory
        while (left := group_alive(self.pid)) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        if left:
            logger.error(
                "a process of %s (group %d) still exists %.0f s after SIGKILL; its port and memory may not be free",
                *(self.name, self.pid, KILLED_SECONDS),
            )
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        return status

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of the log, for error messages."""
        return log_tail(self.log_path, lines)


def spawn(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    log_path: Path | None = None,
    name: str = "",
    keeps: Sequence[int] = (),
) -> ChildProcess:
    """Start ``command`` in a new session, with a lifeline to this process.

    Args:
        command: program and arguments; the program must call :func:`watch_lifeline` first.
        env: complete environment of the child; ``None`` inherits this process's.
        log_path: file to append stdout and stderr to; ``None`` inherits them.
        name: name for messages.
        keeps: file descriptors that the child inherits, under the same numbers.
    """
    read_end, write_end = os.pipe()
    environment = dict(os.environ if env is None else env)
    environment[LIFELINE_VARIABLE] = str(read_end)
    log = None
    try:
        if log_path is not None:
            private_folder(log_path.parent)
            log = private(str(log_path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        popen = subprocess.Popen(
            [str(part) for part in command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT if log is not None else None,
            start_new_session=True,
            pass_fds=(read_end, *keeps),
        )
    except BaseException:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
        if log is not None:
            os.close(log)
    return ChildProcess(popen, write_end, name or Path(str(command[0])).name, log_path)


def watch_lifeline() -> None:
    """End this process's group when the parent dies; a no-op in a process that ``spawn`` did not start.

    Call it first in the child's ``main``. It removes the variable, so that grandchildren do not use it.
    """
    value = os.environ.pop(LIFELINE_VARIABLE, None)
    if value is None:
        return
    descriptor = int(value)
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_end_group_at_eof, args=(descriptor,), name=LIFELINE_THREAD, daemon=True).start()


def _end_group_at_eof(descriptor: int) -> None:
    while os.read(descriptor, 1):
        continue
    group = os.getpgrp()
    # A helper process sends SIGKILL, because this process may exit before a member that ignores SIGTERM.
    subprocess.Popen(
        ["/bin/sh", "-c", f"sleep {GRACE_SECONDS}; kill -KILL -{group} 2>/dev/null"],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.killpg(group, signal.SIGTERM)


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group; return False if the group is gone."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def group_alive(group: int) -> bool:
    """Return whether a process group still has a member that is not a zombie."""
    return bool(_states(group) - {"Z", "X"})


def group_stopped(group: int) -> bool:
    """Return whether a signal has stopped a member of a process group (SIGSTOP, a debugger)."""
    return "T" in _states(group)


def group_programs(group: int) -> set[str]:
    """Return the names of the programs that a process group runs; the kernel cuts them after 15 characters."""
    return {program for program, _ in _members(group)}


def _states(group: int) -> set[str]:
    """Return the states of a process group's members, as the kernel's letters."""
    return {state for _, state in _members(group)}


def _members(group: int) -> Iterator[tuple[str, str]]:
    """Yield program and state of each member of a process group that can be read."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(errors="replace")  # a program may have any bytes as its name
        except OSError:  # it has ended, or the kernel hides other users' processes
            continue
        program, _, rest = stat.partition("(")[2].rpartition(")")
        fields = rest.split()
        if int(fields[2]) == group:
            yield program, fields[0]


def log_tail(path: Path | None, lines: int = 30) -> str:
    """Return the last ``lines`` lines of a log file, or why there are none."""
    if path is None:
        return "(the process logs to the terminal)"
    if not path.exists():
        return f"(no log at {path})"
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


class Stopped(Exception):
    """A signal asked the run to stop while it waited."""


STOPPING = "stopping; a second signal ends this at once\n"


def run_main(main: Callable[[], int]) -> int:
    """Return the exit code of a program's main function; Ctrl-C before it handles signals is one line, not a traceback."""
    try:
        return main()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


class StopRequested:
    """Record SIGTERM or SIGINT, and say so, so that a loop can end cleanly; the second signal raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._event = threading.Event()

    def install(self) -> StopRequested:
        """Install handlers for both signals; call it from the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._event.is_set():
            raise KeyboardInterrupt
        self.signal_number = number
        self._event.set()
        # Not print(): its buffer may be in use by the code that the signal interrupted.
        with contextlib.suppress(OSError):
            os.write(2, STOPPING.encode())

    def __bool__(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for a signal; return whether one arrived."""
        return self._event.wait(seconds)

    @property
    def exit_code(self) -> int:
        """Return 130 after SIGINT, else 0."""
        return 130 if self.signal_number == signal.SIGINT else 0
