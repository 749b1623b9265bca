"""Group commit: runs an event loop's ledger calls in one thread, in order, with one disk sync per group.

Guarantees: calls take effect in order. A call returns only after its writes are committed. Calls that wait during a disk
sync share the next transaction. Each call is a savepoint, so a failing call leaves no trace and the others succeed. If
the transaction itself fails (disk full, file locked), its calls run again one by one, so that each gets its own error.

Owns the thread and the queue; used from one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")
MAX_CALLS_TOGETHER = 128


Outcome = tuple[Any, Exception | None]
Call = Callable[[], Any]
Batch = list[tuple[Call, asyncio.Future[Any]]]


class Transactional(Protocol):
    """A ledger with nested transactions."""

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]: ...


class GroupCommit:
    """Runs the calls; see the module's guarantees."""

    def __init__(self, store: Transactional) -> None:
        self._store = store
        self._waiting: Batch = []
        self._busy = False
        self._idle: asyncio.Future[None] | None = None
        self._given: SimpleQueue[tuple[asyncio.AbstractEventLoop, Batch] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._thread.start()

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return the result of a ledger call; it completes even if the caller is cancelled."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((partial(function, *arguments), future))
        self._next()
        return await future

    async def close(self) -> None:
        """Finish the queued calls and end the thread."""
        if self._busy:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
        self._given.put(None)
        await asyncio.to_thread(self._thread.join)

    def _next(self) -> None:
        """Pass all queued calls to the thread, unless it is busy."""
        if self._busy:
            return
        if not self._waiting:
            if self._idle is not None and not self._idle.done():
                self._idle.set_result(None)
            return
        self._busy = True
        batch, self._waiting = self._waiting[:MAX_CALLS_TOGETHER], self._waiting[MAX_CALLS_TOGETHER:]
        self._given.put((asyncio.get_running_loop(), batch))

    def _deliver(self, batch: Batch, outcomes: list[Outcome]) -> None:
        """Deliver the outcomes, after giving the thread its next work."""
        self._busy = False
        self._next()
        for (_, future), (value, error) in zip(batch, outcomes, strict=True):
            if future.done():
                continue  # its caller was cancelled
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

    def _work(self) -> None:
        """Run batches until None; the thread's main function."""
        while (given := self._given.get()) is not None:
            loop, batch = given
            outcomes = self._make([call for call, _ in batch])
            loop.call_soon_threadsafe(self._deliver, batch, outcomes)

    def _make(self, calls: list[Call]) -> list[Outcome]:
        """Run calls in one transaction, or one by one if that fails."""
        if len(calls) == 1:
            return [_outcome(calls[0])]
        try:
            return self._together(calls)
        except Exception:
            logger.exception("%d ledger calls could not be committed together; running each alone", len(calls))
            return [_outcome(call) for call in calls]

    def _together(self, calls: list[Call]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        with self._store.transaction() as connection:
            for call in calls:
                value, error = _outcome(call)
                if error is not None and not connection.in_transaction:
                    raise error  # SQLite rolled back the whole transaction, not only this call
                outcomes.append((value, error))
        return outcomes


def _outcome(call: Call) -> Outcome:
    """Run a call and return its result or error."""
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001
        return None, error
