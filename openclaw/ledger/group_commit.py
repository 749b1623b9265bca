"""Ledger calls of an event loop: one thread, in order, and one sync of the disk for all that wait together.

Guarantees: calls take effect in the order they were made. A call returns after what it wrote is committed, never
before. Calls that wait while the disk syncs for the ones before them share the next transaction; each is a savepoint of
it, so that one that fails leaves no trace and the others count. When the transaction itself fails (disk full, file
locked), its calls are made again one by one, so that each gets the error that is its own.

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
MOST_CALLS_TOGETHER = 128


Outcome = tuple[Any, Exception | None]
Call = Callable[[], Any]
Batch = list[tuple[Call, asyncio.Future[Any]]]


class Transactional(Protocol):
    """A ledger whose transactions may stand inside one another."""

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]: ...


class GroupCommit:
    """Makes the calls; see the module's guarantees."""

    def __init__(self, store: Transactional) -> None:
        self._store = store
        self._waiting: Batch = []
        self._busy = False
        self._idle: asyncio.Future[None] | None = None
        self._given: SimpleQueue[tuple[asyncio.AbstractEventLoop, Batch] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._thread.start()

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a ledger call returns; it is carried through even when the caller is cancelled."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((partial(function, *arguments), future))
        self._next()
        return await future

    async def close(self) -> None:
        """Let the thread finish what it was given."""
        if self._busy:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle
        self._given.put(None)
        await asyncio.to_thread(self._thread.join)

    def _next(self) -> None:
        """Give the thread everything that waits, unless it is at work."""
        if self._busy:
            return
        if not self._waiting:
            if self._idle is not None and not self._idle.done():
                self._idle.set_result(None)
            return
        self._busy = True
        batch, self._waiting = self._waiting[:MOST_CALLS_TOGETHER], self._waiting[MOST_CALLS_TOGETHER:]
        self._given.put((asyncio.get_running_loop(), batch))

    def _deliver(self, batch: Batch, outcomes: list[Outcome]) -> None:
        """Hand the outcomes out; the thread gets its next work first."""
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
        """Make what is given, until None; runs in the thread."""
        while (given := self._given.get()) is not None:
            loop, batch = given
            outcomes = self._make([call for call, _ in batch])
            loop.call_soon_threadsafe(self._deliver, batch, outcomes)

    def _make(self, calls: list[Call]) -> list[Outcome]:
        """Make calls in the thread: together, or one by one when that is not possible."""
        if len(calls) == 1:
            return [_outcome(calls[0])]
        try:
            return self._together(calls)
        except Exception:
            logger.exception("%d ledger calls could not be committed together; each is made alone", len(calls))
            return [_outcome(call) for call in calls]

    def _together(self, calls: list[Call]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        with self._store.transaction() as connection:
            for call in calls:
                value, error = _outcome(call)
                if error is not None and not connection.in_transaction:
                    raise error  # SQLite gave the whole transaction up, not only this call
                outcomes.append((value, error))
        return outcomes


def _outcome(call: Call) -> Outcome:
    """Make a call; its error belongs to whoever waits for it."""
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001
        return None, error
