"""Processes that environments own: started after they are recorded, and ended even if the server was killed.

* `Processes` starts them, one process group each. A process waits at a gate, a pipe whose other end this server holds, until its
  group is in the ledger; if the server dies first, it ends without having run the program.
* `ProcessLedger` is the durable record (SQLite, fsync on every commit). A group stays there until it has ended. One server at a
  time uses a file; the kernel frees it when that server dies. The file is private. A slow disk never blocks the event loop.
* `end` kills recorded groups and nothing else: a group as a whole while its leader is the recorded process, and beyond that every
  process that carries the lease's secret in its environment, so also one that left the group, or outlived the leader.
* A `Mark` tells a process from a later one with the same id: an id is reused, but not together with the process's start time in
  ticks since the machine's start, within one start of the machine.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import signal
import sqlite3
import time
from asyncio.subprocess import Process
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from agentrl.exceptions import InfraError
from groundwork.exceptions import ConfigError
from groundwork.private_files import private, private_folder

PROC = Path("/proc")
FLAGS, ENVIRONMENT_END = 6, 48
"""Where fields 9 and 51 of ``/proc/PID/stat`` are after the name, by proc_pid_stat(5)."""
EXITING, KERNEL_THREAD = 0x4, 0x200000
"""``PF_EXITING`` and ``PF_KTHREAD`` of Linux's ``sched.h``."""
STARTING_S = 5.0
OWNER_VARIABLE = "AGENTRL_OWNER"
"""Environment variable of every process that an environment starts, with the secret of its lease."""
TABLE = "CREATE TABLE IF NOT EXISTS groups (secret TEXT, pid INTEGER, ticks INTEGER, boot TEXT)"
POOL = "CREATE TABLE IF NOT EXISTS pool (name TEXT)"
KILLED_SECONDS = 5.0
"""How long the kernel may take to remove a killed process, which may have much memory."""
POLL_SECONDS = 0.01
THREADS = ThreadPoolExecutor(2, "ending")
GATE = 'gate=$1; shift; read -r -N1 -u "$gate" || exit 75; exec {gate}<&-; exec "$@"'
Stream = int | IO[bytes] | None
LINE_BYTES = 1 << 16


class Mark(NamedTuple):
    """A process: its id, its start in clock ticks since the machine's start, and the id of that start."""

    pid: int
    ticks: int
    boot: str


def mark_of(pid: int) -> Mark | None:
    """Return the mark of a process; None if there is none, or only its zombie."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else Mark(pid, int(fields[19]), boot)


def is_alive(mark: Mark) -> bool:
    """Return whether exactly this process still runs."""
    return mark_of(mark.pid) == mark


def group_members(group: int) -> Iterator[int]:
    """Yield the ids of the processes in a process group, zombies excepted."""
    for pid in _all():
        try:
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            yield pid


def carriers(secrets: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield the processes whose environment holds the secret of one of these owners, with it; zombies excepted."""
    owned = {f"{OWNER_VARIABLE}={secret}".encode(): secret for secret in secrets}
    for pid in _all():
        try:
            variables = _environment(pid).split(b"\0")
        except OSError:
            continue  # it ended, or belongs to another user
        for variable in owned.keys() & variables:
            yield pid, owned[variable]


def _environment(pid: int) -> bytes:
    """Return the environment of a process; wait while it starts a program, when the kernel shows none of it.

    After `STARTING_S` seconds it counts as empty.
    """
    deadline = time.monotonic() + STARTING_S
    file = PROC / str(pid) / "environ"
    while not (variables := file.read_bytes()) and _is_starting(pid) and time.monotonic() < deadline:
        time.sleep(0.001)
    return variables or file.read_bytes()  # it may have begun since


def _is_starting(pid: int) -> bool:
    """Return whether a process is between two programs: no environment yet, but neither ending nor the kernel's own."""
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (
        fields[0] not in "ZX" and not int(fields[FLAGS]) & (EXITING | KERNEL_THREAD) and fields[ENVIRONMENT_END] == "0"
    )


def _all() -> Iterator[int]:
    """Yield the ids of all processes."""
    return (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())


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
        result = await self._do("SELECT secret, pid, ticks, boot FROM groups", ())
        return [Group(secret, Mark(pid, ticks, boot)) for secret, pid, ticks, boot in result]

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
                return [row for value in values for row in cursor.execute(statement, value)]

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, committed)
        except sqlite3.Error as error:
            raise InfraError(f"the ledger {self.path} cannot be used: {error}", code="ledger_failed") from error


async def end(groups: Sequence[Group]) -> list[Group]:
    """Kill groups and wait until they are gone; return those that still exist after `KILLED_SECONDS` seconds."""
    if not groups:
        return []
    return await asyncio.get_running_loop().run_in_executor(THREADS, _end, groups, KILLED_SECONDS)


def _end(groups: Sequence[Group], patience_s: float) -> list[Group]:
    signalled: dict[Group, set[Mark]] = {group: set() for group in groups}
    deadline = time.monotonic() + patience_s
    while (left := _kill(signalled)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return left


def _kill(signalled: dict[Group, set[Mark]]) -> list[Group]:
    """Send SIGKILL to what belongs to groups, after one search for all of them; return those that have anything left.

    A killed process gives its environment up before it ends, and is then found no more, so those are remembered.

    Args:
        signalled: each group's processes that were killed before; those that are killed now are added.
    """
    carrying: dict[str, set[int]] = {group.secret: set() for group in signalled}
    for pid, secret in carriers(carrying):
        carrying[secret].add(pid)
    left: list[Group] = []
    for group, marks in signalled.items():
        result = carrying[group.secret] - {os.getpid()}
        if is_alive(group.leader):
            result |= set(group_members(group.leader.pid))
        marks |= {mark for pid in result if (mark := mark_of(pid))}
        if is_alive(group.leader):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group.leader.pid, signal.SIGKILL)
        for pid in result:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if result or any(map(is_alive, marks)):
            left.append(group)
    return left


class Processes:
    """Starts processes for one lease; each leads a process group of its own."""

    def __init__(self, ledger: ProcessLedger) -> None:
        self._ledger = ledger
        self._secret = secrets.token_hex(16)
        self._groups: list[Group] = []
        self._closed = False

    @property
    def pool(self) -> str:
        """Return the name of the pool that they belong to, the same after a crash; see `ProcessLedger`."""
        return self._ledger.pool

    async def spawn(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        stdin: Stream = asyncio.subprocess.DEVNULL,
        stdout: Stream = asyncio.subprocess.DEVNULL,
        stderr: Stream = asyncio.subprocess.DEVNULL,
        limit: int = LINE_BYTES,
        pass_fds: Sequence[int] = (),
    ) -> Process:
        """Start a program; a program that does not exist exits with status 127.

        Args:
            argv: the program and its arguments.
            env: its whole environment; the server's own, which holds its key, is not inherited.
            cwd: folder that it runs in.
            stdin: as in `asyncio.create_subprocess_exec`, and so are ``stdout`` and ``stderr``.
            limit: most bytes of a line that `readline` of a pipe returns.
            pass_fds: descriptors that it gets, by the same numbers.

        Raises:
            InfraError: the lease is closing, or the process did not start.
        """
        self._check_open()
        read_end, write_end = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *("/bin/bash", "-p", "-c", GATE, "gate", str(read_end), *map(str, argv)),
                env={**env, OWNER_VARIABLE: self._secret},
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                limit=limit,
                start_new_session=True,
                pass_fds=(read_end, *pass_fds),
            )
            self._check_open()
            if (mark := mark_of(process.pid)) is None:
                raise InfraError(f"{argv[0]} ended before it began", code="process_lost")
            group = Group(self._secret, mark)
            self._groups.append(group)
            await self._ledger.add(group)
            self._check_open()
            os.write(write_end, b"1")
            return process
        except OSError as error:
            raise InfraError(f"{argv[0]} did not start: {error.strerror}", code="process_lost") from error
        finally:
            os.close(read_end)
            os.close(write_end)

    async def end(self) -> int:
        """End all processes and start no more; return the number of groups that still exist."""
        self._closed = True
        groups = list(self._groups)
        left = await end(groups)
        gone = [group for group in groups if group not in left]
        if gone:
            await self._ledger.remove(gone)
        self._groups = [group for group in self._groups if group not in gone]
        return len(self._groups)

    def _check_open(self) -> None:
        if self._closed:
            raise InfraError("the lease is closing; start no more processes", code="closing")


async def end_leftovers(ledger: ProcessLedger) -> int:
    """End what a crashed server left, and forget it; return how many groups there were.

    Raises:
        InfraError: a process survives SIGKILL; its group stays in the ledger.
    """
    groups = await ledger.groups()
    left = await end(groups)
    await ledger.remove([group for group in groups if group not in left])
    if left:
        pids = ", ".join(str(group.leader.pid) for group in left)
        raise InfraError(f"process groups {pids} of an earlier server do not end; look at them", code="leftovers")
    return len(groups)
