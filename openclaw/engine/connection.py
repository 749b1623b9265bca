"""HTTP/1.1 to one engine: POST a request, stream the body of its answer.

Guarantees: one read of the socket is passed on in one piece, without a timer or task per read; a token costs about a
quarter of its cost in general HTTP clients. A connection is reused only if its last answer was read to the end; any
other is closed, which the engine notices. A slow reader exerts backpressure on the engine instead of filling memory.
Every failure of a connection is an `EngineBrokeOffError`.

While `MANY_ANSWERS` or more are under way, a reader wakes once per round for all that has arrived, not once per packet, and
the readers of a round wake together (`Rounds`). The head of an answer, the first bytes of its body, its end and a failure
never wait for a round.

`Connections` owns the sockets; used from one event loop. httptools does the parsing.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from openclaw.exceptions import EngineBrokeOffError

ROUTING_HEADER = "x-smg-routing-key"
CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 600.0
IDLE_SECONDS = 2.0  # shorter than any server's idle time-out
MAX_UNREAD_BYTES = 1 << 20
MANY_ANSWERS = 64
ROUND_SECONDS = 0.05
"""How long a piece of a long answer may wait beside many others: a fraction of what a reader notices."""


class Answer(Protocol):
    """An HTTP answer whose head has arrived."""

    status: int
    finished: bool
    """Set it to ignore the rest of the body and reuse the connection once the body is complete."""

    async def read(self) -> bytes:
        """Return what has arrived of the body, waiting for something; empty at its end."""
        ...


class Rounds:
    """Lets the readers of many answers wake together; a token that waits costs a fraction of one that wakes its reader."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """How long a reader sleeps after a piece, at least."""
        self._under_way = 0
        self._waiting: list[Connection] = []

    def count(self, change: int) -> None:
        """Count answers that begin (1) or end (-1)."""
        self._under_way += change
        self.seconds = ROUND_SECONDS if self._under_way >= MANY_ANSWERS else 0.0

    def join(self, connection: Connection) -> None:
        """Wake the reader of ``connection`` at the end of this round, which the first one to join begins."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(ROUND_SECONDS, self._end)
        self._waiting.append(connection)

    def _end(self) -> None:
        waiting, self._waiting = self._waiting, []
        for connection in waiting:
            connection.wake()


class Connection(asyncio.Protocol):
    """One connection; answers one request at a time."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._read_at = 0.0
        self._in_round = False
        self.status = 0
        self.complete = True
        self.finished = False
        self.idle_since = 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._unread = 0
        self._paused = False
        self._failure: str | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._heard = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._home: list[Connection] | None = None

    @property
    def usable(self) -> bool:
        """Whether another request may be sent."""
        return self._failure is None and self.complete and time.monotonic() - self.idle_since < IDLE_SECONDS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        self._transport = cast(asyncio.Transport, transport)

    async def send(self, request: bytes) -> None:
        """Send a request and wait for the head of its answer."""
        self.status, self.complete, self.finished = 0, False, False
        self._parts, self._unread, self._read_at = [], 0, 0.0
        self._parser = httptools.HttpResponseParser(self)
        self._heard = time.monotonic()
        self._check_silence()
        self._transport.write(request)
        while not self.status:
            await self._wait()

    async def read(self) -> bytes:
        """Return what has arrived of the body, waiting for something; empty at its end."""
        while not self._parts:
            if self.complete:
                return b""
            await self._wait()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._unread, self._read_at = [], 0, self._heard
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return data

    def close(self) -> None:
        """Close the socket at once."""
        self._stop_watch()
        self._failure = self._failure or "closed"
        self._transport.abort()

    def go_home(self, home: list[Connection]) -> None:
        """Return to the pool once the answer is complete; otherwise close."""
        self._stop_watch()
        if self.complete and not self._paused:
            self.idle_since = time.monotonic()
            home.append(self)
        elif self.finished and self._failure is None:
            self._home = home
            self._watch = asyncio.get_running_loop().call_later(IDLE_SECONDS, self.close)
        else:
            self.close()

    def data_received(self, data: bytes) -> None:
        """Parse a part of an answer."""
        self._heard = time.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")
            self._transport.abort()
            return
        if self._unread > MAX_UNREAD_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        if self.complete or self._paused or self._heard - self._read_at >= self._rounds.seconds:
            self.wake()
        elif not self._in_round:
            self._in_round = True
            self._rounds.join(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the end of the connection."""
        self._fail(f"the connection ended: {exc}" if exc else "the connection ended")

    def on_headers_complete(self) -> None:
        """Record the status; called by the parser."""
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Append to the body; called by the parser."""
        self._parts.append(body)
        self._unread += len(body)

    def on_message_complete(self) -> None:
        """Record the end of the answer; called by the parser."""
        self.complete = True
        if self._home is not None:
            home, self._home = self._home, None
            self.go_home(home)

    async def _wait(self) -> None:
        if self._failure is not None:
            raise EngineBrokeOffError(self._failure)
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def wake(self) -> None:
        """Let the reader go on."""
        self._in_round = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, words: str) -> None:
        self._failure = self._failure or words
        self.wake()

    def _check_silence(self) -> None:
        """Fail a silent connection; reschedules itself once per deadline instead of at every read."""
        left = self._heard + SILENCE_SECONDS - time.monotonic()
        if left > 0:
            self._watch = asyncio.get_running_loop().call_later(left, self._check_silence)
        else:
            self._fail(f"silent for {SILENCE_SECONDS:g} s")
            self._transport.abort()

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None


class Connections:
    """The open connections to one engine."""

    def __init__(self, url: str) -> None:
        """Create a pool for ``url``: ``http://HOST:PORT`` or ``https://...``, optionally with a path prefix."""
        self.url = url
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._head = f"host: {parts.netloc.rpartition('@')[2]}\r\ncontent-type: application/json\r\n"
        self._path = parts.path.rstrip("/")
        self._idle: list[Connection] = []
        self._rounds = Rounds()

    @asynccontextmanager
    async def post(self, path: str, body: bytes, routing_key: str | None = None) -> AsyncIterator[Answer]:
        """Send a request; leaving the ``with`` block before the end of the answer abandons it.

        A router sends requests with the same ``routing_key`` (letters and digits) to the same engine.

        Raises:
            EngineBrokeOffError: if there is no connection, or it ends before the answer is complete.
        """
        connection = self._take() or await self._open()
        self._rounds.count(1)
        try:
            routing = f"{ROUTING_HEADER}: {routing_key}\r\n" if routing_key else ""
            head = f"POST {self._path}{path} HTTP/1.1\r\n{self._head}{routing}content-length: {len(body)}\r\n\r\n"
            await connection.send(head.encode() + body)
            yield connection
        finally:
            self._rounds.count(-1)
            connection.go_home(self._idle)

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _take(self) -> Connection | None:
        """Return the most recently used idle connection; close those past the idle time-out."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.close()
        return None

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await loop.create_connection(
                    lambda: Connection(self._rounds), self._host, self._port, ssl=self._tls
                )
        except (OSError, TimeoutError) as error:
            raise EngineBrokeOffError(f"{type(error).__name__}: {error}") from error
        return connection
