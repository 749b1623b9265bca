"""Answers on the wire: JSON, streams of server-sent events, heartbeats, disconnects.

Guarantees: each delta is sent as soon as it is known, beside many replies once a round (`openclaw.engine.connection`). What
a stream says is its `Form`'s: the events, what a silent stream gets, what ends a failed one. Work is cancelled as soon as
its client closes the connection, and only then; one task watches, and the work itself runs without a task of its own. The
owner learns the end of every stream exactly once. Heartbeats, also before the first token, prevent idle time-outs between
engine and client. `EventStream` owns the sending of one reply.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Protocol

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from openclaw.gateway.errors import CLIENT_GONE, ApiError, ClientGoneError, stopping

LESSONS_HEADER = "x-openclaw-lessons"
"""Of a request: ``on`` or ``off``; of an answer: how many lessons its prompt had."""


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


class Heartbeats:
    """Sends a heartbeat after each silence of a stream; set ``sent_at`` on every other send."""

    def __init__(self, send: Send, seconds: float, heartbeat: Callable[[], bytes]) -> None:
        """Start now; send what ``heartbeat`` gives after ``seconds`` of silence."""
        self.sent_at = time.monotonic()
        self._send = send
        self._heartbeat = heartbeat
        self._seconds = seconds
        self._sending: asyncio.Future[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        left = self.sent_at + self._seconds - time.monotonic()
        if left <= 0:
            left, self.sent_at = self._seconds, time.monotonic()
            if self._sending is None or self._sending.done():
                message = {"type": "http.response.body", "body": self._heartbeat(), "more_body": True}
                self._sending = asyncio.ensure_future(self._send(message))
        self._timer = asyncio.get_running_loop().call_later(left, self._look)

    async def between(self) -> None:
        """Wait until a heartbeat that was written is sent: what was written after it must not overtake it."""
        if self._sending is not None and not self._sending.done():
            await asyncio.wait({self._sending})

    async def stop(self) -> None:
        """Stop sending heartbeats."""
        self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


class Voice(Protocol):
    """What a stream says by itself."""

    def heartbeat(self) -> bytes:
        """Return what a silent stream gets."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """Return the event that ends a stream which failed."""
        ...


class EventStream(Response):
    """Sends the events of ``source`` until it ends or the client disconnects."""

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AsyncGenerator[bytes, None],
        voice: Voice,
        headers: dict[str, str],
        on_end: Callable[[int], None],
        *,
        keepalive_seconds: float,
    ) -> None:
        """Create the response.

        Args:
            source: the events.
            voice: gives heartbeats and the event of a server that stops.
            headers: of the response.
            keepalive_seconds: silence after which a heartbeat is sent.
            on_end: called once at the end, even if ``source`` was never read: with 200 if everything was sent, 499 if the
            client disconnected, 500 if sending failed, 503 if the server ended first.
        """
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._source = source
        self._voice = voice
        self._on_end = on_end
        self._keepalive_seconds = keepalive_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the response.

        Raises:
            ClientGoneError: if the client disconnects.
        """
        status = CLIENT_GONE
        try:
            async with aclosing(self._source) as source:
                await self._send(source, receive, send)
            status = 200
        except (ClientGoneError, OSError):
            raise
        except asyncio.CancelledError:  # the time that the server gives its last requests is over
            status = 503
            await send({"type": "http.response.body", "body": self._voice.failure(stopping()), "more_body": False})
        except Exception:
            status = 500
            raise
        finally:
            self._on_end(status)

    async def _send(self, source: AsyncGenerator[bytes, None], receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        heartbeats = Heartbeats(send, self._keepalive_seconds, self._voice.heartbeat)
        try:
            async with Connected(receive):
                async for data in source:
                    heartbeats.sent_at = time.monotonic()
                    await heartbeats.between()
                    await send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            await heartbeats.stop()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
