"""Floods of one client against a server in its own process: others are answered, memory and files come back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from lab.testkit.waiting import eventually

pytestmark = pytest.mark.slow

MEGABYTE = 1 << 20
MAX_GROWTH = 100 * MEGABYTE
CHAT = {"messages": [{"role": "user", "content": "Hello?"}]}
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
STALLED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b'Content-Length: 1000\r\n\r\n{"messages": '
)
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Server:
    """The server's process and port."""

    def __init__(self, process: psutil.Process, port: int) -> None:
        self.process, self.port = process, port
        self.url = f"http://127.0.0.1:{port}"

    async def connect(self, sent: bytes = b"") -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sent)
        return reader, writer

    async def check(self) -> None:
        """Hold the server to its answers for others."""
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=60) as client:
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200

    @property
    def files(self) -> int:
        return self.process.num_fds()


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.bounded_gateway"],
        cwd=repository,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Server(psutil.Process(process.pid), int(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.wait(60)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def whole(reader: asyncio.StreamReader) -> bytes:
    """Return what arrives until the connection closes."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            said += data
    return said


async def send(connection: Connection, part: bytes, count: int) -> bytes:
    """Send ``part`` until the server closes, at most ``count`` times; return the answer."""
    reader, writer = connection
    answer = asyncio.create_task(whole(reader))
    with contextlib.suppress(ConnectionError):
        for _ in range(count):
            writer.write(part)
            await writer.drain()
    said = await answer
    writer.close()
    return said


def refused(said: bytes) -> bool:
    """Return whether a head was refused: by an answer, which a reset of the connection may overtake."""
    return said == b"" or said.startswith(b"HTTP/1.1 431 ")


async def hundred_megabytes(server: Server) -> list[Connection]:
    for part in (b"y" * MEGABYTE, b"X: " + b"y" * 16381 + b"\r\n"):
        said = await send(await server.connect(GET + b"X: "), part, 100 * MEGABYTE // len(part))
        assert refused(said), said[:100]
    return []


async def many_lines(server: Server) -> list[Connection]:
    connections = [await server.connect(GET) for _ in range(10)]
    answers = await asyncio.gather(*(send(each, b"X: y\r\n" * 1000, 20) for each in connections))
    assert all(refused(said) for said in answers)
    return []


async def half_open(server: Server) -> list[Connection]:
    """More connections than the server allows, silent or in the middle of a head."""
    connections = [await server.connect(GET if n % 2 else b"") for n in range(2500)]
    await eventually(
        lambda: sum(reader.at_eof() or reader.exception() is not None for reader, _ in connections) > 0, True
    )
    return connections


async def stalled_bodies(server: Server) -> list[Connection]:
    """More than the requests that the server takes, then more than its connections."""
    connections = [await server.connect(STALLED) for _ in range(1100)]
    await server.check()
    return connections + [await server.connect(STALLED) for _ in range(1100)]


async def many_pipelined(server: Server) -> list[Connection]:
    """Ten requests wait behind a body that is not JSON; two thousand are too many."""
    return [await server.connect(STALLED + b" " * 987 + (GET + b"\r\n") * count) for count in (10, 2000) * 25]


async def unread_answers(server: Server) -> list[Connection]:
    return [await server.connect((GET + b"\r\n") * 10) for _ in range(100)]


FLOODS = [hundred_megabytes, many_lines, half_open, stalled_bodies, many_pipelined, unread_answers]


@pytest.mark.parametrize("flood", FLOODS)
async def test_others_are_answered_during_a_flood(
    server: Server, flood: Callable[[Server], Awaitable[list[Connection]]]
) -> None:
    await server.check()
    files, memory = server.files, server.process.memory_info().rss
    connections = await flood(server)
    await server.check()
    grown = server.process.memory_info().rss - memory
    print(f"{flood.__name__}: {grown / MEGABYTE:.1f} MB more, {server.files - files} files more")
    for _, writer in connections:
        writer.close()
    await eventually(lambda: server.files <= files, True, 60)
    await server.check()
    assert grown < MAX_GROWTH
