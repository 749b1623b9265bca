"""A client's connection: JSON answer, keep-alive comments, and disconnects.

Guarantees: work is cancelled as soon as its client closes the connection, and only then. A stream is never silent for
longer than the seconds of its `Comments`. One task watches; the work itself runs without a task of its own.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

import orjson
from starlette.responses import Response
from starlette.types import Receive, Send

from openclaw.gateway.errors import ClientGoneError

COMMENT = b": keep-alive\n\n"


def json_response(value: object, headers: dict[str, str] | None = None) -> Response:
    """Return an answer with a JSON body."""
    return Response(orjson.dumps(value), headers=headers, media_type="application/json")


class Connected:
    """``async with Connected(receive)``: cancel the block with `ClientGoneError` when the client disconnects."""

    def __init__(self, receive: Receive) -> None:
        """Watch an ASGI request whose body has been read."""
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
    """Sends a keep-alive comment after each silence of a stream; set ``sent_at`` on every other send."""

    def __init__(self, send: Send, seconds: float) -> None:
        """Start now; send a comment after ``seconds`` of silence."""
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
        """Stop sending comments."""
        self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
