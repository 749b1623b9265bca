"""Connections to the engine: used again when whole, closed when not, and every failure is the same error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

import openclaw.engine.connection as engine_connection
from openclaw.engine.connection import Connections
from openclaw.exceptions import EngineBrokeOffError

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RawServer:
    """A server that answers each request with what the test says; knows its connections."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces
        self.opened = 0
        self.closed = asyncio.Event()
        self.hang_up = False
        self.release = asyncio.Event()
        self.release.set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(2)
                for piece in self.pieces:
                    writer.write(piece)
                    await writer.drain()
                    await self.release.wait()
                if self.hang_up:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            self.closed.set()

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Connections]:
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        connections = Connections(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        yield connections
        connections.close()
        server.close()


async def ask(connections: Connections) -> bytes:
    body = b""
    async with connections.post("/generate", b"{}") as answer:
        assert answer.status == 200
        while part := await answer.read():
            body += part
    return body


async def test_a_connection_whose_answer_was_read_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_connection, "IDLE_SECONDS", 60.0)
    server = RawServer(HEAD, b"3\r\none\r\n", b"3\r\ntwo\r\n" + END)
    async with server.serve() as connections:
        assert [await ask(connections), await ask(connections)] == [b"onetwo"] * 2
    assert server.opened == 1


async def test_an_answer_that_is_left_closes_the_connection() -> None:
    server = RawServer(HEAD, b"3\r\none\r\n")
    async with server.serve() as connections:
        async with connections.post("/generate", b"{}") as answer:
            assert await answer.read() == b"one"
        async with asyncio.timeout(10):
            await server.closed.wait()


async def test_a_finished_answer_is_used_again_once_its_end_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_connection, "IDLE_SECONDS", 60.0)
    server = RawServer(HEAD + b"3\r\none\r\n", END)
    async with server.serve() as connections:
        server.release.clear()
        async with connections.post("/generate", b"{}") as answer:
            assert await answer.read() == b"one"
            answer.finished = True
        assert connections._idle == []
        server.release.set()
        async with asyncio.timeout(10):
            while not connections._idle:
                await asyncio.sleep(0)
        assert await ask(connections) == b"one"
    assert server.opened == 1


async def test_an_idle_connection_that_the_engine_closed_is_not_used() -> None:
    server = RawServer(HEAD + b"3\r\none\r\n" + END)
    server.hang_up = True
    async with server.serve() as connections:
        for _ in range(2):
            server.closed.clear()
            assert await ask(connections) == b"one"
            await server.closed.wait()
            async with asyncio.timeout(10):
                while any(connection.usable for connection in connections._idle):
                    await asyncio.sleep(0)
    assert server.opened == 2


@pytest.mark.parametrize("pieces", [(), (HEAD, b"3\r\none\r\n"), (b"this is not HTTP\r\n\r\n",)])
async def test_an_answer_that_breaks_off_or_is_no_http(pieces: tuple[bytes, ...]) -> None:
    server = RawServer(*pieces)
    server.hang_up = True
    async with server.serve() as connections:
        with pytest.raises(EngineBrokeOffError):
            await ask(connections)


async def test_nobody_listens() -> None:
    with pytest.raises(EngineBrokeOffError, match=r"OSError|ConnectionRefusedError"):
        await ask(Connections("http://127.0.0.1:9"))


async def test_an_engine_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_connection, "SILENCE_SECONDS", 0.05)
    server = RawServer(HEAD)
    async with server.serve() as connections:
        with pytest.raises(EngineBrokeOffError, match="silent"):
            await ask(connections)


async def test_a_reader_that_falls_behind_stops_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_connection, "MAX_UNREAD_BYTES", 1 << 16)
    part = b"%x\r\n" % (1 << 16) + b"x" * (1 << 16) + b"\r\n"
    server = RawServer(HEAD, *[part] * 200, END)
    async with server.serve() as connections:
        total = 0
        async with connections.post("/generate", b"{}") as answer:
            await asyncio.sleep(0.1)
            while data := await answer.read():
                assert len(data) < 1 << 20
                total += len(data)
    assert total == 200 << 16


class Pieces:
    """A server whose answer has a piece at once and two more after it was read, and then ends or breaks off.

    With ``apart`` each of the two waits until the piece before it was read.
    """

    def __init__(self, *, ends: bool, apart: bool) -> None:
        self.read = asyncio.Semaphore(0)
        self._ends = ends
        self._apart = apart

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.write(b"3\r\none\r\n")
        await self.read.acquire()
        writer.write(b"3\r\ntwo\r\n")
        await writer.drain()
        await (self.read.acquire() if self._apart else asyncio.sleep(0.01))
        writer.write(b"5\r\nthree\r\n")
        await writer.drain()
        await (self.read.acquire() if self._apart else asyncio.sleep(0.01))
        if self._ends:
            writer.write(END)
            await reader.read()
        writer.close()

    async def parts(self) -> list[bytes]:
        """Read an answer; return what each read gave."""
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        connections = Connections(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(10), connections.post("/generate", b"") as answer:
                while part := await answer.read():
                    parts.append(part)
                    self.read.release()
        except EngineBrokeOffError:
            parts.append(b"broke off")
        finally:
            connections.close()
            server.close()
        return parts


@pytest.mark.parametrize(
    ("ends", "expected"), [(True, [b"one", b"twothree"]), (False, [b"one", b"twothree", b"broke off"])]
)
async def test_beside_many_answers_a_reader_wakes_once_a_round(
    monkeypatch: pytest.MonkeyPatch, ends: bool, expected: list[bytes]
) -> None:
    monkeypatch.setattr(engine_connection, "MANY_ANSWERS", 1)
    monkeypatch.setattr(engine_connection, "ROUND_SECONDS", 60.0)
    assert await Pieces(ends=ends, apart=False).parts() == expected


async def test_a_round_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_connection, "MANY_ANSWERS", 1)
    monkeypatch.setattr(engine_connection, "ROUND_SECONDS", 0.05)
    assert await Pieces(ends=True, apart=True).parts() == [b"one", b"two", b"three"]


async def test_beside_few_answers_every_piece_wakes_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_connection, "ROUND_SECONDS", 60.0)
    assert await Pieces(ends=True, apart=True).parts() == [b"one", b"two", b"three"]
