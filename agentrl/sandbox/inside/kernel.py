"""Process trees, and properties of a process. Linux only; stateless."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress

ENDING_SECONDS = 5.0
SET_DUMPABLE, SET_CHILD_SUBREAPER, SET_NO_NEW_PRIVILEGES = 4, 36, 38


def prctl(option: int, value: int) -> None:
    """Set a property of this process.

    Raises:
        OSError: the kernel refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option} failed")


def processes() -> dict[int, list[int]]:
    """Return the living children of each process."""
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state not in b"ZX":
                    below.setdefault(int(parent), []).append(int(name))
    return below


def descendants(root: int, of: dict[int, list[int]]) -> set[int]:
    """Return the processes below one, without it."""
    results: set[int] = set()
    waiting = [root]
    while waiting:
        children = of.get(waiting.pop(), [])
        results.update(children)
        waiting += children
    return results


def end_below(root: int, *, also: bool) -> bool:
    """Kill the descendants of a process, and with ``also`` itself; return whether they are gone in time.

    All are stopped before any is killed, because a killed process makes room for another one's child.
    """
    deadline = time.monotonic() + ENDING_SECONDS
    while time.monotonic() < deadline:
        stopped = {root} if also else set()
        send(stopped, signal.SIGSTOP)
        while result := descendants(root, processes()) - stopped:
            send(result, signal.SIGSTOP)
            stopped |= result
        if not stopped - {root}:
            send(stopped, signal.SIGKILL)
            return True
        send(stopped - {root}, signal.SIGKILL)
        time.sleep(0.001)
    return False


def send(pids: set[int], number: int) -> None:
    """Send a signal to processes that may be gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def close_all_but(kept: Iterable[int]) -> None:
    """Lead stdin, stdout and stderr nowhere, and close every other descriptor that is not to be kept."""
    null = os.open(os.devnull, os.O_RDWR)
    for item in (0, 1, 2):
        os.dup2(null, item)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))


def enter(groups: Iterable[int]) -> None:
    """Move this process into control groups, by descriptors of their ``cgroup.procs``.

    Raises:
        OSError: the kernel refuses.
    """
    for group in groups:
        os.write(group, b"0")
