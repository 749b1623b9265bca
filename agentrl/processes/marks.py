"""Tell a process from a later one that has the same id.

A process id is reused, but not together with the process's start time in ticks since the machine's start, within one
start of the machine. Reads ``/proc``; stateless.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
FLAGS, ENVIRONMENT_END = 6, 48
"""Where fields 9 and 51 of ``/proc/PID/stat`` are after the name, by proc_pid_stat(5)."""
EXITING, KERNEL_THREAD = 0x4, 0x200000
"""``PF_EXITING`` and ``PF_KTHREAD`` of Linux's ``sched.h``."""
STARTING_S = 5.0
OWNER_VARIABLE = "AGENTRL_OWNER"
"""Environment variable of every process that an environment starts, with the secret of its lease."""


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
