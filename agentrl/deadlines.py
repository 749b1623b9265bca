"""Deadlines that nest: client > router > worker > operation.

A request's ``timeout_s`` (or ``wait_s``) bounds the operation itself. Each hop around it waits a little longer, so that
the innermost deadline is the one that fires, and its answer still travels outwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")
logger = logging.getLogger(__name__)

PASSED = "deadline_passed"
"""Code of the DeadlineError of an operation that took too long in its environment; others are of the way to it."""
CANCEL_GRACE_S = 2.0
"""How long a cancelled operation may take to end before it is abandoned."""
WORKER_MARGIN_S = 5.0
"""Of a pool's route."""
ROUTER_MARGIN_S = 8.0
"""Of a router's call to a pool."""
ROUTER_ROUTE_MARGIN_S = 11.0
"""Of a router's own route."""
CLIENT_MARGIN_S = 15.0
"""Of a client's call."""
CONTROL_S = 10.0
"""For calls without an operation: renew, release, status."""


async def ended_in_time(task: asyncio.Task[Any], seconds: float, grace_s: float = CANCEL_GRACE_S) -> bool:
    """Wait for a task; return False if it had to be cancelled after ``seconds``.

    A task that ignores its cancellation is abandoned after ``grace_s`` more. If the caller is cancelled, so is the task.
    """
    task.add_done_callback(_note_late_error)
    try:
        await asyncio.wait({task}, timeout=seconds)
        return task.done()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=grace_s)


async def awaited(call: Callable[[], Awaitable[T]]) -> T:
    """Call foreign code and await it; whatever it does wrong is an exception of this coroutine."""
    try:
        return await call()
    except SystemExit as error:
        raise RuntimeError(f"it asked the whole process to exit with {error.code}") from error


def _note_late_error(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a task that nobody may await any more."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.debug("%s ended with %r", task.get_name(), error)
