"""HTTP/1.1 connections with bounds: uvicorn's protocol, which has none of its own before a request reaches the guard.

Guarantees:

* A head has at most `HEADER_BYTES`, `HEADER_LINES` and `URL_BYTES`. A larger one gets 431 or 414, and the parser sees at
  most two `PIECE` bytes more. It arrives within `HEAD_SECONDS`, or its connection closes.
* At most ``OPENCLAW_MAX_CONNECTIONS`` are open. A further one closes the one that has been without a request for
  longest, else the one whose body has been arriving for longest. If all are being answered, the new one gets 503 with
  ``Retry-After``.
* A client that stops reading its answer loses its connection after `UNREAD_SECONDS`.
* The rest of the body of an answered request is dropped, up to `DROPPED_BYTES` and `DROP_SECONDS`.
* Every refusal has its path's error shape, as far as the path is known, and is counted by the name of its bound.

`Door` owns what the connections of a server share. It looks at each of them once per `LOOK_SECONDS`, and has a clock for which a
process that is stopped or starved stands still: a look that comes late counts as one in time. A connection closes if it was
overdue at the look before, because since then the process has read what had come. So its standstill costs no client a connection.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import orjson
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from openclaw.config.bounds import (
    HEAD_SECONDS,
    HEADER_BYTES,
    HEADER_LINES,
    KEEP_ALIVE_SECONDS,
    PIPELINED,
    UNREAD_SECONDS,
    URL_BYTES,
    Bound,
)
from openclaw.gateway.errors import LIMIT_HEADER, ApiError

PIECE = 16384
"""Bytes that the parser gets at a time."""
DROP_SECONDS = 2.0
DROPPED_BYTES = 4 << 20
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class DoorBounds:
    """The bounds of a server's connections; tests change them."""

    connections: int
    head_seconds: float = HEAD_SECONDS.most
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS.most
    unread_seconds: float = UNREAD_SECONDS.most
    drop_seconds: float = DROP_SECONDS
    look_seconds: float = LOOK_SECONDS


class Door:
    """The open connections of a server."""

    def __init__(self, bounds: DoorBounds, on_limit: Callable[[str], None]) -> None:
        """Open the door.

        Args:
            bounds: of the connections.
            on_limit: called with the name of each bound that a client reaches.
        """
        self.bounds = bounds
        self.on_limit = on_limit
        self.open: set[BoundedProtocol] = set()
        self.idle: dict[BoundedProtocol, None] = {}
        """Connections without a request under way, the one that is so for longest first."""
        self.reading: dict[BoundedProtocol, None] = {}
        """Connections with a body that has not ended, the one that is so for longest first."""
        self._timer: asyncio.TimerHandle | None = None
        self._ran = self._looked = 0.0

    @property
    def clock(self) -> float:
        """Seconds in which connections were open and the process ran."""
        return self._ran + min(asyncio.get_running_loop().time() - self._looked, self.bounds.look_seconds)

    def protocol(self, **given: Any) -> BoundedProtocol:
        """Return the protocol of a new connection; uvicorn's ``http`` setting calls this."""
        return BoundedProtocol(self, **given)

    def enter(self, connection: BoundedProtocol) -> bool:
        """Take a new connection in, in place of one that only waits if needed; return False if there is no room."""
        if len(self.open) >= self.bounds.connections:
            self.on_limit("connections")
            longest = next(chain(self.idle, self.reading), None)
            if longest is None:
                return False
            longest.end()
        self.open.add(connection)
        if self._timer is None:
            self._look_later()
        return True

    def leave(self, connection: BoundedProtocol) -> None:
        """Forget a connection."""
        self.open.discard(connection)
        self.idle.pop(connection, None)
        self.reading.pop(connection, None)

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._looked = loop.time()
        self._timer = loop.call_later(self.bounds.look_seconds, self._look)

    def _look(self) -> None:
        before, self._ran = self._ran, self.clock
        self._look_later()
        for connection in list(self.open):
            connection.look(before)
        if not self.open and self._timer is not None:
            self._timer.cancel()
            self._timer = None


class BoundedProtocol(HttpToolsProtocol):
    """One connection; it is idle, or has a request under way, or drops what it receives until it closes."""

    def __init__(self, door: Door, **given: Any) -> None:
        """Prepare a connection of ``door`` with uvicorn's own arguments."""
        super().__init__(**given)
        self._door = door
        self._refusal: ApiError | None = None
        self._in_head = self._in_body = False
        self._head_bytes = self._head_lines = self._head_fed = 0
        self._due: float | None = None
        """When an idle connection closes, by the door's clock, as all times here."""
        self._resting = False
        self._drop_due: float | None = None
        self._dropped = 0
        self._unread = 0
        self._moved = 0.0
        self._running: RequestResponseCycle | None = None

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, or refuse a connection too many."""
        super().connection_made(transport)
        if not self._door.enter(self):
            most = self._door.bounds.connections
            self._refuse(
                ApiError(
                    503, f"{most} connections are open, the server's limit; send it again in 1 s", code="server_busy"
                )
            )
            self.transport.close()
            return
        self._moved = self._door.clock
        self._rest(self._door.bounds.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """End, with all requests of the connection; uvicorn itself ends the newest only."""
        self._door.leave(self)
        self._abandon()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of a client, as far as they are within bounds."""
        if self._drop_due is not None:
            self._drop(len(data))
        if self._refusal is not None:
            return
        if self._resting:
            self._rest(self._door.bounds.head_seconds)
            self._resting = False
        for start in range(0, len(data), PIECE):
            piece = data if len(data) <= PIECE else data[start : start + PIECE]
            if self._in_head:
                self._head_fed += len(piece)
            super().data_received(piece)
            if self._in_head and self._head_fed > HEADER_BYTES.most:
                self._refuse(_too_large(HEADER_BYTES))
            if self.transport.is_closing() or self._refusal is not None:
                return

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        """Begin a head."""
        self._in_head = True
        self._head_bytes = self._head_lines = self._head_fed = 0
        if len(self.pipeline) >= PIPELINED.most:
            self._stop_parsing(_too_large(PIPELINED))
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        super().on_url(url)
        if len(self.url) > URL_BYTES.most:
            self._stop_parsing(_too_large(URL_BYTES, 414))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header line, or one that follows a chunked body."""
        self._head_lines += 1
        self._head_bytes += len(name) + len(value) + 4
        if self._head_lines > HEADER_LINES.most:
            self._stop_parsing(_too_large(HEADER_LINES))
        if self._head_bytes > HEADER_BYTES.most:
            self._stop_parsing(_too_large(HEADER_BYTES))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request on."""
        self._in_head, self._in_body, self._due = False, True, None
        self._door.idle.pop(self, None)
        self._door.reading[self] = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End the body."""
        self._in_body = False
        self._door.reading.pop(self, None)
        super().on_message_complete()
        if self._drop_due is not None and self._refusal is None:
            self._drop_due = None
            self._rest(self._door.bounds.keep_alive_seconds)
            self._resting = True

    def on_response_complete(self) -> None:
        """Wait for the next request, or drop the rest of this one."""
        waiting = bool(self.pipeline)
        super().on_response_complete()
        if waiting or self.transport.is_closing():
            return
        self._rest(self._door.bounds.keep_alive_seconds)
        self._resting = True
        self._door.reading.pop(self, None)
        if self._in_body:
            self._begin_drop()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser does not accept, or what a bound stopped."""
        if self._refusal is None:
            self._refuse(ApiError(400, "this is not an HTTP request", code="invalid_request"))

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: the guard answers."""

    def timeout_keep_alive_handler(self) -> None:
        """Close nothing: the door does, by its clock."""

    # Bounds

    def look(self, now: float) -> None:
        """Close the connection if it was overdue at ``now``, the look before this one."""
        if self._is_stuck(now):
            self._door.on_limit(UNREAD_SECONDS.name)
            self._abandon()
            self.transport.abort()
        elif self._drop_due is not None:
            if now >= self._drop_due:
                self.transport.close()
        elif self._due is not None and now >= self._due and not self.transport.is_closing():
            if self._in_head:
                self._refuse(ApiError(408, "the head came too slowly; send it again", limit=HEAD_SECONDS.name))
            self.transport.close()

    def end(self) -> None:
        """Make room for another connection."""
        self._door.leave(self)
        self._abandon()
        self.transport.abort()

    def _abandon(self) -> None:
        """Let the requests of this connection see that their client is gone; they must not write any more."""
        for cycle in (self._running, *(waiting for waiting, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def _is_stuck(self, now: float) -> bool:
        """Return whether the client has read nothing for `UNREAD_SECONDS`, while nothing was added to its answer."""
        waiting = self.transport.get_write_buffer_size()
        unread = waiting + _in_kernel(self.transport) if waiting else 0
        growing = self.cycle is not None and not self.cycle.response_complete and not self.flow.write_paused
        if not unread or unread < self._unread or growing:
            self._moved = now
        self._unread = unread
        return now - self._moved >= self._door.bounds.unread_seconds

    def _rest(self, seconds: float) -> None:
        self._due = self._door.clock + seconds
        self._door.idle[self] = None

    def _begin_drop(self) -> None:
        self._drop_due = self._door.clock + self._door.bounds.drop_seconds

    def _drop(self, count: int) -> None:
        self._dropped += count
        if self._dropped > DROPPED_BYTES:
            self.transport.close()

    def _stop_parsing(self, error: ApiError) -> None:
        self._refuse(error)
        raise error

    def _refuse(self, error: ApiError) -> None:
        """Answer ``error`` unless another answer is under way, then close as soon as the client has had time to read."""
        self._refusal = error
        self._in_head = False
        if error.limit:
            self._door.on_limit(error.limit)
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            if not self._in_body and error.limit is None:
                self.cycle.keep_alive = False  # what came before is whole, so it is answered, and nothing after it
                return
            alone = self._running is self.cycle and not self.cycle.response_started
            self._abandon()
            if not alone:
                self.transport.close()
                return
        path = (getattr(self, "url", None) or b"").partition(b"?")[0].decode("latin-1")
        body = orjson.dumps(error.body_at(path))
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n" % len(body)
        if error.limit:
            head += f"{LIMIT_HEADER}: {error.limit}\r\n".encode()
        if error.retry_after is not None:
            head += f"retry-after: {error.retry_after}\r\n".encode()
        self.transport.write(STATUS_LINE[error.status] + head + b"\r\n" + body)
        self._begin_drop()


def _in_kernel(transport: asyncio.Transport) -> int:
    """Return the bytes that the kernel has taken but the client's has not; 0 where the system does not tell.

    The kernel takes the next bytes in steps of up to a megabyte, which a slow client needs minutes to read.
    """
    try:
        unsent = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(unsent, sys.byteorder)


def _too_large(bound: Bound, status: int = 431) -> ApiError:
    return ApiError(
        status,
        f"the request has more than {bound.most} {bound.unit} ({bound.name}); send less",
        code="request_too_large",
        limit=bound.name,
    )
