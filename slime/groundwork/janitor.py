"""Clean up after an owner that was killed.

Usage: ``python -I -S janitor.py FOLDER [detached]``, with ``PID START_TIME`` or ``/PATH`` lines on stdin.

Guarantee: when stdin closes, which means that the owner ended, it ends the named processes after a grace period and
removes the folder and the named paths. A process is named by id and start time, so a recycled id is never hit.
Processes started too late to be named are found by command-line options that point into the folder, as all of Ray's do.
It imports only the smallest modules, because it stays in memory for the whole run.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time

GRACE_SECONDS = 3.0
_POLL_SECONDS = 0.1


def start_time(pid: int) -> str | None:
    """Return a process's start time in clock ticks since boot; None if it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


def in_folder(folder: str) -> list[tuple[str, str]]:
    """Return id and start time of processes with an option ``--NAME=VALUE`` that points into ``folder``."""
    results = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = os.fsdecode(file.read()).split("\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        values = [word.partition("=")[2] for word in words if word.startswith("--")]
        if any(value == folder or value.startswith(f"{folder}/") for value in values):
            started = start_time(int(pid))
            if started is not None:
                results.append((pid, started))
    return results


def _alive(processes: list[tuple[str, str]]) -> list[int]:
    return [int(pid) for pid, started in processes if start_time(int(pid)) == started]


def _end(processes: list[tuple[str, str]]) -> None:
    for pid in _alive(processes):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _remove(paths: list[str]) -> None:
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except (IsADirectoryError, PermissionError):
            shutil.rmtree(path, ignore_errors=True)


def main() -> None:
    """Wait until the owner ends, then clean up."""
    if sys.argv[2:] == ["detached"] and os.fork():
        return
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lines = sys.stdin.read().splitlines()
    folder = sys.argv[1]
    wards = [(line.split()[0], line.split()[1]) for line in lines if line[0] != "/"]
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and _alive([*wards, *in_folder(folder)]):
        time.sleep(_POLL_SECONDS)
    _end([*wards, *in_folder(folder)])
    paths = [folder, *(line for line in lines if line[0] == "/")]
    _remove(paths)
    time.sleep(GRACE_SECONDS)
    _end(in_folder(folder))
    _remove(paths)


if __name__ == "__main__":
    main()
