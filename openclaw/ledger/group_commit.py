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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")
MOST_CALLS_TOGETHER = 128


Outcome = tuple[Any, Exception | None]
Call = Callable[[], Any]


class Transactional(Protocol):
    """A ledger whose transactions may stand inside one another."""

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]: ...


class GroupCommit:
    """Makes the calls; see the module's guarantees."""

    def __init__(self, store: Transactional) -> None:
        self._store = store
        self._waiting: list[tuple[Call, asyncio.Future[Any]]] = []
        self._pending: set[asyncio.Future[Any]] = set()
        self._busy = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a ledger call returns; it is carried through even when the caller is cancelled."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        self._waiting.append((lambda: function(*arguments), future))
        self._next()
        return await asyncio.shield(future)

    async def close(self) -> None:
        """Let the thread finish what it was given."""
        if self._pending:
            await asyncio.wait(self._pending)
        await asyncio.to_thread(self._thread.shutdown)

    def _next(self) -> None:
        """Give the thread everything that waits, unless it is at work."""
        if self._busy or not self._waiting:
            return
        self._busy = True
        batch, self._waiting = self._waiting[:MOST_CALLS_TOGETHER], self._waiting[MOST_CALLS_TOGETHER:]
        futures = [future for _, future in batch]
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._make, [call for call, _ in batch])
        work.add_done_callback(lambda done: self._deliver(futures, done.result()))

    def _deliver(self, futures: list[asyncio.Future[Any]], outcomes: list[Outcome]) -> None:
        """Hand the outcomes out; the thread gets its next work first."""
        self._busy = False
        self._next()
        for future, (value, error) in zip(futures, outcomes, strict=True):
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

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
        outcomes = []
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
