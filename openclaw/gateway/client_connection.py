"""The connection of a client: its request's body, its JSON answer, comments while it waits, and its early end.

Guarantees: work is cancelled as soon as its client has closed the connection, and only then; between two things that a
stream sends never pass more than the seconds of its `Comments`. A body is read up to its
limit. One task watches, none is made for the work.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Send

from openclaw.gateway.errors import ApiError, ClientGoneError

COMMENT = b": keep-alive\n\n"


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body of a request.

    Raises:
        ApiError: 413 when it has more than ``limit`` bytes; the rest is not read.
        ClientGoneError: when the client closed the connection before it had sent all.
    """
    stated = request.headers.get("content-length", "0")
    if stated.isdigit() and int(stated) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > limit:
                raise _too_large(limit)
    except ClientDisconnect as error:
        raise ClientGoneError from error
    return bytes(body)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body has more than {limit} bytes; send less", code="request_too_large")


def json_response(value: object, headers: dict[str, str] | None = None) -> Response:
    """Return an answer with a JSON body."""
    return Response(orjson.dumps(value), headers=headers, media_type="application/json")


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
