"""Processes: look at those that may end meanwhile, and ask whether one answers."""

from __future__ import annotations

import contextlib
import ipaddress
import time
from collections.abc import Iterable, Mapping

import httpx
import psutil

GONE_SECONDS = 60.0
PROBE = httpx.Client(timeout=5, trust_env=False)
"""Making a client costs 20 ms of a core, a call with it half of one."""


def title_of(process: psutil.Process) -> str:
    """The command line; empty for a process that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def alive(processes: Iterable[psutil.Process], seconds: float = GONE_SECONDS) -> list[psutil.Process]:
    """Return those that still run after a grace; a corpse that nobody has buried does not."""
    left, deadline = list(processes), time.monotonic() + seconds
    while (left := [process for process in left if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def assert_all_gone(processes: Iterable[psutil.Process]) -> None:
    """Fail unless every process ends within `GONE_SECONDS`."""
    left = alive(processes)
    assert not left, [f"{process.pid} {title_of(process)}" for process in left]


def reachable_from_outside(processes: Iterable[psutil.Process]) -> list[str]:
    """Return ``address:port title`` of each TCP listener of ``processes`` that is not on loopback."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            places = [each.laddr for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
            found += [
                f"{place.ip}:{place.port} {title_of(process)[:80]}"
                for place in places
                if not ipaddress.ip_address(place.ip.removeprefix("::ffff:")).is_loopback
            ]
    return found


def end(processes: Iterable[psutil.Process], seconds: float) -> None:
    """Kill those that have not ended by themselves after ``seconds``."""
    for process in alive(processes, seconds):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def answers(url: str, headers: Mapping[str, str] | None = None) -> bool:
    """Whether ``url`` answers with status 200 right now."""
    try:
        return PROBE.get(url, headers=headers, timeout=2).status_code == 200
    except httpx.TransportError:
        return False
