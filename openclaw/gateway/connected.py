"""Work for a client that may go away, and comments for one that has to wait.

Guarantees: work is cancelled as soon as its client has closed the connection, and only then; between two things that a
stream sends never pass more than the seconds of its `Comments`. One task watches, none is made for the work.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

from starlette.types import Receive, Send

COMMENT = b": keep-alive\n\n"
# The status that is counted and logged for a client that did not wait; it sees none.
CLIENT_GONE = 499


class ClientGoneError(Exception):
    """The client closed the connection before it was answered."""


class Connected:
    """``async with Connected(receive)``: the body is cancelled, and ends in `ClientGoneError`, when the client goes away."""

    def __init__(self, receive: Receive) -> None:
        """Bind the watch to an ASGI request whose body has been read."""
        self._receive = receive
        self._over = self._gone = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._watch = asyncio.ensure_future(_wait_until_gone(self._receive))
        self._watch.add_done_callback(self._on_gone)

    def _on_gone(self, watch: asyncio.Task[None]) -> None:
        if not self._over and not watch.cancelled():
            self._gone = True
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over = True
        self._watch.cancel()
        if self._gone and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise ClientGoneError from error


class Comments:
    """Sends a comment, which every reader skips, whenever a stream was silent; set ``sent_at`` when something is sent."""

    def __init__(self, send: Send, seconds: float) -> None:
        """Begin now; a comment follows ``seconds`` of silence."""
        self.sent_at = time.monotonic()
        self._send = send
        self._seconds = seconds
        self._sending: asyncio.Future[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        left = self.sent_at + self._seconds - time.monotonic()
        if left <= 0:
            left, self.sent_at = self._seconds, time.monotonic()
            if self._sending is None or self._sending.done():
                message = {"type": "http.response.body", "body": COMMENT, "more_body": True}
                self._sending = asyncio.ensure_future(self._send(message))
        self._timer = asyncio.get_running_loop().call_later(left, self._look)

    async def stop(self) -> None:
        """Send no more."""
        self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
