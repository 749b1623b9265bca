"""What a crashed server left is ended, and only that."""

from __future__ import annotations

import asyncio
import functools
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl import processes as marks
from agentrl.exceptions import InfraError
from agentrl.processes import OWNER_VARIABLE, Group, Mark, Processes, ProcessLedger, end_leftovers, mark_of
from groundwork.exceptions import ConfigError
from lab.testkit.agent_pools import MINIMAL, until

PIPE = asyncio.subprocess.PIPE


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[ProcessLedger]:
    ledger = ProcessLedger(tmp_path / "deep" / "pool.sqlite")
    yield ledger
    ledger.close()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a group of its own, and that no environment owns."""
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


async def test_a_group_is_recorded_before_its_program_starts(ledger: ProcessLedger, tmp_path: Path) -> None:
    started = tmp_path / "started"
    processes = Processes(ledger)
    recorded: list[bool] = []
    add = ledger.add

    async def slow(group: Group) -> None:
        await until(lambda: mark_of(group.leader.pid))
        recorded.append(started.exists())
        await add(group)

    ledger.add = slow
    process = await processes.spawn(["touch", started], env=MINIMAL)
    assert await process.wait() == 0
    assert started.exists()
    assert recorded == [False]
    assert [group.leader.pid for group in await ledger.groups()] == [process.pid]
    assert await processes.end() == 0
    assert await ledger.groups() == []


async def test_a_program_whose_record_fails_never_starts(ledger: ProcessLedger, tmp_path: Path) -> None:
    started = tmp_path / "started"
    processes = Processes(ledger)

    async def full(group: Group) -> None:
        raise OSError(28, "No space left on device")

    ledger.add = full
    with pytest.raises(InfraError, match="No space left"):
        await processes.spawn(["touch", started], env=MINIMAL)
    pid = processes._groups[0].leader.pid
    await until(lambda: mark_of(pid) is None)
    assert not started.exists()


async def test_a_program_sees_only_what_it_is_given(ledger: ProcessLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_KEY", "secret")
    processes = Processes(ledger)
    process = await processes.spawn(["sh", "-c", "cat; env; ls /proc/self/fd"], env=MINIMAL, stdin=PIPE, stdout=PIPE)
    output, _ = await process.communicate(b"input\n")
    text = output.decode()
    assert text.startswith("input\n")
    assert "secret" not in text
    assert OWNER_VARIABLE in text
    assert text.splitlines()[-4:] == ["0", "1", "2", "3"]  # 3 is the folder that ls reads
    missing = await processes.spawn(["no-such-program"], env=MINIMAL)
    assert await missing.wait() == 127


async def test_all_that_a_lease_started_is_ended(
    ledger: ProcessLedger, bystander: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    processes, other = Processes(ledger), Processes(ledger)
    script = "sleep 600 & setsid sleep 600 & echo $! $$; exit 0"
    process = await processes.spawn(["sh", "-c", script], env=MINIMAL, stdout=PIPE)
    assert process.stdout is not None
    escaped, leader = map(int, (await process.stdout.readline()).split())
    kept = await other.spawn(["sleep", "600"], env=MINIMAL)
    await until(lambda: mark_of(leader) is None)
    assert mark_of(escaped)
    assert await processes.end() == 0
    assert mark_of(escaped) is None
    assert await process.stdout.read() == b"", "a child in the group still has the pipe"
    assert mark_of(kept.pid)
    assert bystander.poll() is None
    with pytest.raises(InfraError, match="closing"):
        await processes.spawn(["sleep", "600"], env=MINIMAL)
    await other.end()
    assert await kept.wait() == -signal.SIGKILL


async def test_a_killed_process_is_waited_for_while_it_frees_its_memory(ledger: ProcessLedger) -> None:
    processes = Processes(ledger)
    script = "import os, time; held = bytearray(b'1') * (64 << 20); print(os.getpid(), flush=True); time.sleep(600)"
    process = await processes.spawn(["setsid", "--fork", sys.executable, "-c", script], env=MINIMAL, stdout=PIPE)
    assert process.stdout is not None
    escaped = int(await process.stdout.readline())
    assert await processes.end() == 0
    assert mark_of(escaped) is None


def test_a_process_that_starts_a_program_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two programs the kernel shows an empty environment; simulated, since it lasts microseconds."""
    monkeypatch.setattr(marks, "PROC", tmp_path)
    flags = {"10": 0x400000, "11": 0x400004, "12": 0x200000}  # it starts a program, ends, is a thread of the kernel
    for pid, flag in flags.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "environ").touch()
        fields = ["R", *["0"] * 5, str(flag), *["0"] * 45]
        (tmp_path / pid / "stat").write_text(f"{pid} (a name) {' '.join(fields)}")
    variables = tmp_path / "10" / "environ"
    assert [marks._is_starting(int(pid)) for pid in flags] == [True, False, False]
    timer = threading.Timer(0.05, variables.write_bytes, [f"HOME=/\0{OWNER_VARIABLE}=secret\0".encode()])
    timer.start()
    assert list(marks.carriers(["secret"])) == [(10, "secret")]
    timer.join()
    variables.write_bytes(b"")
    monkeypatch.setattr(marks, "STARTING_S", 0.01)
    assert list(marks.carriers(["secret"])) == []


def test_a_process_that_began_between_two_looks_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "PROC", tmp_path)
    (tmp_path / "10").mkdir()
    variables = tmp_path / "10" / "environ"
    variables.touch()

    def begins(pid: int) -> bool:
        variables.write_text(f"{OWNER_VARIABLE}=secret\0")
        return False

    monkeypatch.setattr(marks, "_is_starting", begins)
    assert list(marks.carriers(["secret"])) == [(10, "secret")]


async def test_a_process_with_a_reused_id_is_not_killed(
    ledger: ProcessLedger, bystander: subprocess.Popen[bytes]
) -> None:
    mark = mark_of(bystander.pid)
    assert mark is not None
    await ledger.add(Group("a" * 32, mark._replace(ticks=mark.ticks - 1)))
    await ledger.add(Group("b" * 32, mark._replace(boot="another start of the machine")))
    assert await end_leftovers(ledger) == 2
    assert bystander.poll() is None
    assert await ledger.groups() == []
    await ledger.add(Group("c" * 32, mark))
    assert await end_leftovers(ledger) == 1
    assert bystander.wait(20) == -signal.SIGKILL


async def test_one_server_at_a_time_uses_a_ledger(ledger: ProcessLedger) -> None:
    with pytest.raises(ConfigError, match="in use by another server; name another file"):
        ProcessLedger(ledger.path)
    assert ledger.path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_no_ledger(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database" * 100)
    for _ in range(2):  # the lock is given up
        with pytest.raises(ConfigError, match="not a database"):
            ProcessLedger(path)
    with pytest.raises(ConfigError, match="--ledger"):
        ProcessLedger(path / "pool.sqlite")


async def test_groups_survive_the_server(tmp_path: Path, bystander: subprocess.Popen[bytes]) -> None:
    mark = mark_of(bystander.pid)
    assert mark is not None
    first = ProcessLedger(tmp_path / "pool.sqlite")
    await first.add(Group("d" * 32, mark))
    first.close()
    second = ProcessLedger(tmp_path / "pool.sqlite")
    assert await second.groups() == [Group("d" * 32, mark)]
    second.close()


async def test_a_cursor_ends_in_the_thread_that_uses_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed_in: list[int] = []
    left_open: list[int] = []

    class Cursor(sqlite3.Cursor):
        closed = False

        def close(self) -> None:
            self.closed = True
            closed_in.append(threading.get_ident())
            super().close()

        def __del__(self) -> None:
            if not self.closed:
                left_open.append(threading.get_ident())

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

    connect = functools.partial(sqlite3.connect, factory=Connection)
    monkeypatch.setattr("agentrl.processes.sqlite3.connect", connect)
    ledger = ProcessLedger(tmp_path / "pool.sqlite")
    groups = [Group(f"{number:032}", Mark(number, 0, "a start")) for number in range(2)]
    for group in groups:
        await ledger.add(group)
    assert await ledger.groups() == groups
    await ledger.remove(groups)
    assert await ledger.groups() == []
    ledger.close()
    here = threading.get_ident()
    assert here not in left_open, "a cursor that ends elsewhere resets a statement that the thread may be using"
    assert here not in closed_in
    assert len(closed_in) == 5, "one for each call"
