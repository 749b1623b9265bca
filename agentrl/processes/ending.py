"""End recorded process groups, and nothing else.

A group is ended as a whole while its leader is the recorded process. Beyond that, every process ends that carries the
lease's secret in its environment: one that left the group, or outlived the leader. One search of ``/proc`` serves all
groups of a call, and runs in threads of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from agentrl.processes.ledger import Group
from agentrl.processes.marks import Mark, carriers, group_members, is_alive, mark_of

KILLED_S = 5.0
"""How long the kernel may take to remove a killed process, which may have much memory."""
POLL_S = 0.01
THREADS = ThreadPoolExecutor(2, "ending")


async def end(groups: Sequence[Group]) -> list[Group]:
    """Kill groups and wait until they are gone; return those that still exist after `KILLED_S` seconds."""
    if not groups:
        return []
    return await asyncio.get_running_loop().run_in_executor(THREADS, _end, groups, KILLED_S)


def _end(groups: Sequence[Group], patience_s: float) -> list[Group]:
    signalled: dict[Group, set[Mark]] = {group: set() for group in groups}
    deadline = time.monotonic() + patience_s
    while (left := _kill(signalled)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
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
        found = carrying[group.secret] - {os.getpid()}
        if is_alive(group.leader):
            found |= set(group_members(group.leader.pid))
        marks |= {mark for pid in found if (mark := mark_of(pid))}
        if is_alive(group.leader):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group.leader.pid, signal.SIGKILL)
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if found or any(map(is_alive, marks)):
            left.append(group)
    return left
