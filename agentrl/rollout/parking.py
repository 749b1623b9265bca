"""Aborted episodes that wait, with their leases, until slime asks for their samples again.

Guarantees: an episode is taken by one caller only. One that nobody takes within its time is closed, so its lease is given back.
Owns the waiting episodes; used from one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Generic, Protocol, TypeVar

logger = logging.getLogger(__name__)


class Parked(Protocol):
    """An episode that can wait."""

    @property
    def name(self) -> str: ...
    async def close(self) -> None: ...


P = TypeVar("P", bound=Parked)


class Parking(Generic[P]):
    """The waiting episodes, by ticket."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[P, asyncio.Task[None]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, run: P, seconds: float) -> str:
        """Keep an episode for ``seconds``; return its ticket."""
        ticket = secrets.token_hex(8)
        self._waiting[ticket] = run, asyncio.create_task(self._expire(ticket, seconds), name=f"parking {run.name}")
        return ticket

    def take(self, ticket: str | None) -> P | None:
        """Return the episode of a ticket; None if there is none, or it was closed."""
        run, expiring = self._waiting.pop(ticket or "", (None, None))
        if expiring is not None:
            expiring.cancel()
        return run

    async def close(self) -> None:
        """Close all waiting episodes."""
        for ticket in list(self._waiting):
            if (run := self.take(ticket)) is not None:
                await run.close()

    async def _expire(self, ticket: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        run, _ = self._waiting.pop(ticket)
        logger.warning("episode %s was not taken up within %g s; its task starts over", run.name, seconds)
        await run.close()
