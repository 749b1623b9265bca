"""Cleans up after an owner that was killed: ``python -I -S janitor.py FOLDER [detached]``, told ``PID START_TIME`` or ``/FILE`` on stdin.

Guarantee: when stdin ends, which is when the owner does, the named processes are ended after a grace period and the folder and
the named files are removed. A process is named by its id and start time, so that a recycled id is never hit. Imports nothing but the smallest
modules, because it stays in memory for the whole run.
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
    """Start time of a process in clock ticks since boot; None when there is no such process, or only its corpse."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


def _remove(folder: str, files: list[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for file in files:
        try:
            os.unlink(file)
        except FileNotFoundError:
            continue


def main() -> None:
    """Wait for the owner's end, then clean up."""
    if sys.argv[2:] == ["detached"] and os.fork():
        return
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lines = sys.stdin.read().splitlines()
    wards = [tuple(line.split()) for line in lines if line[0] != "/"]
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and any(start_time(int(pid)) == started for pid, started in wards):
        time.sleep(_POLL_SECONDS)
    for pid, started in wards:
        if start_time(int(pid)) == started:
            os.kill(int(pid), signal.SIGKILL)
    files = [line for line in lines if line[0] == "/"]
    _remove(sys.argv[1], files)
    time.sleep(GRACE_SECONDS)
    _remove(sys.argv[1], files)


if __name__ == "__main__":
    main()
