"""Processes: look at those that may end meanwhile, wait for what becomes true, and start new ones that have imported torch."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import ipaddress
import multiprocessing
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import ForkServerContext
from typing import Any

import httpx
import psutil

GONE_SECONDS = 60.0
WAIT_SECONDS = 400.0
PROBE = httpx.Client(timeout=5, trust_env=False)
"""Making a client costs 20 ms of a core, a call with it half of one."""
IMPORTED = ["torch", "torch.distributed.fsdp", "transformers", "peft"]
"""Installed packages only: the server of new processes does not know pytest's paths."""


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


async def eventually(value: Callable[[], Any], wanted: Any, seconds: float = 20.0) -> None:
    """Return once ``value()``, awaited when it can be, equals ``wanted``; fail with the last value otherwise."""
    found: Any = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                found = value()
                if inspect.isawaitable(found):
                    found = await found
                if found == wanted:
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"still {found!r} after {seconds} s, not {wanted!r}") from None


def wait_until(condition: Callable[[], Any], what: Callable[[], str], seconds: float = WAIT_SECONDS) -> Any:
    """Return the first true value of ``condition``; fail with ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(what())


def answers(url: str, headers: Mapping[str, str] | None = None) -> bool:
    """Whether ``url`` answers with status 200 right now."""
    try:
        return PROBE.get(url, headers=headers, timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def ready_to_fork() -> ForkServerContext:
    """Return the context that starts processes which are forked from one that has imported torch.

    That one holds no thread and no group of processes, only modules; what is forked from it is as fresh as a spawned one.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def in_own_process(function: Callable[..., Any], *values: Any) -> Any:
    """Return ``function(*values)`` from a new process that has imported torch and holds no thread of this one.

    A fork of this process would not do: locks that other threads hold (OpenMP, a progress bar) stay locked in it for ever.

    Raises:
        concurrent.futures.process.BrokenProcessPool: the process died.
    """
    with ProcessPoolExecutor(1, mp_context=ready_to_fork()) as pool:
        return pool.submit(function, *values).result()
