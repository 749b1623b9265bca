"""Admission of new requests: a few per round of the event loop, so that running replies proceed between them.

Reading and rendering a request blocks the event loop for about a millisecond. When many arrive together, each round
admits `AT_ONCE` of them, first come, first served. Used from one event loop; owns the queue.
"""

from __future__ import annotations

import asyncio
from collections import deque

AT_ONCE = 4


class Admission:
    """A queue in front of new requests; `enter` returns when a request may begin."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._entered = 0

    async def enter(self) -> None:
        """Wait until fewer than `AT_ONCE` requests have begun in this round of the event loop."""
        loop = asyncio.get_running_loop()
        if self._entered == 0:
            loop.call_soon(self._next_round)
        if self._entered < AT_ONCE and not self._waiting:
            self._entered += 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next_round(self) -> None:
        self._entered = 0
        while self._waiting and self._entered < AT_ONCE:
            turn = self._waiting.popleft()
            if not turn.done():  # otherwise its request was cancelled
                turn.set_result(None)
                self._entered += 1
        if self._entered:
            asyncio.get_running_loop().call_soon(self._next_round)
