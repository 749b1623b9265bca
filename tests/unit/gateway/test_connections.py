"""Connections have bounds before any request reaches the guard; within them, everything works as before."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop
from prometheus_client import CollectorRegistry
from starlette.types import Receive, Scope, Send

from lab.testkit.waiting import eventually
from openclaw.config import bounds as declared
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.protocol import DROPPED_BYTES, DoorBounds
from openclaw.gateway.tls import own_certificate_context
from openclaw.runtime import serve
from openclaw.runtime.serve import GatewayServer, room_for_connections
from tests.unit.gateway.test_tls import write_certificate

WIDE = DoorBounds(100, drop_seconds=0.5, look_seconds=0.05)
HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
GET = HEAD + b"\r\n"


@pytest.fixture(scope="module")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """Return the policy of the loop that the runtime process uses."""
    return uvloop.EventLoopPolicy()


class App:
    """Answers at once; holds ``/held`` until ``open`` is set, and streams ``/endless``."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.under_way = 0
        self.ended: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while True:
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
                if kind == "lifespan.shutdown":
                    return
        self.under_way += 1
        try:
            await self.answer(scope["path"], receive, send)
        finally:
            self.under_way -= 1
            self.ended.append(scope["path"])

    async def answer(self, path: str, receive: Receive, send: Send) -> None:
        if path == "/held":
            await self.open.wait()
        if path == "/echo":
            while (await receive()).get("more_body"):
                continue
        body = b"x" * (1 << 23) if path == "/large" else b"ok"
        endless = path == "/endless"
        headers = [] if endless else [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while endless:
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            watch = asyncio.ensure_future(receive())
            done, _ = await asyncio.wait([watch], timeout=0)
            watch.cancel()
            if done and watch.result()["type"] == "http.disconnect":
                return
        await send({"type": "http.response.body", "body": body})


class Served:
    """A running server, its application and what it counted."""

    def __init__(self, server: GatewayServer, app: App, registry: CollectorRegistry) -> None:
        self.server, self.app, self._registry = server, app, registry
        self.port = server.servers[0].sockets[0].getsockname()[1]

    def hits(self, limit: str) -> float:
        return self._registry.get_sample_value("openclaw_limit_hits_total", {"limit": limit}) or 0.0

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)

    async def connect(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        if sent:
            writer.write(sent)
        return reader, writer

    async def answer(self, sent: bytes) -> bytes:
        """Return everything that the server sends until it closes the connection."""
        reader, writer = await self.connect(sent)
        try:
            return await whole(reader)
        finally:
            writer.close()


async def whole(reader: asyncio.StreamReader) -> bytes:
    """Return what arrives until the connection closes."""
    data = b""
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(65536):
                data += part
    return data


Serve = Callable[..., Any]


@pytest.fixture
async def serving() -> AsyncIterator[Serve]:
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
    async with contextlib.AsyncExitStack() as stack:

        @contextlib.asynccontextmanager
        async def running(bounds: DoorBounds, config: RuntimeConfig) -> AsyncIterator[Served]:
            registry, app = CollectorRegistry(), App()
            server = GatewayServer(app, replace(config, port=0), GatewayMetrics(registry), bounds)
            task = asyncio.create_task(server.serve())
            while not getattr(server, "servers", None):
                assert not task.done(), await task
                await asyncio.sleep(0.005)
            try:
                yield Served(server, app, registry)
            finally:
                server.should_exit = True
                app.open.set()
                await task

        async def start(config: RuntimeConfig | None = None, **changes: Any) -> Served:
            given = config or RuntimeConfig(grace_seconds=1)
            return await stack.enter_async_context(running(replace(WIDE, **changes), given))

        yield start


async def test_requests_on_one_connection(serving: Serve) -> None:
    served = await serving()
    reader, writer = await served.connect(GET * 3)
    for _ in range(3):
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
    writer.write(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n" + b"y" * 1000000 + GET)
    for _ in range(2):
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
    writer.close()


TOO_LARGE = [
    ("header_bytes", 431, HEAD + b"X: " + b"y" * (declared.HEADER_BYTES.most + 1) + b"\r\n\r\n"),
    ("header_bytes", 431, HEAD + (b"X: " + b"y" * 1000 + b"\r\n") * 100),
    ("header_bytes", 431, HEAD + b"X: " + b"y" * 4 * declared.HEADER_BYTES.most),
    ("header_bytes", 431, HEAD + b"y" * 4 * declared.HEADER_BYTES.most),
    ("header_lines", 431, HEAD + b"X: y\r\n" * (declared.HEADER_LINES.most + 1) + b"\r\n"),
    ("url_bytes", 414, b"GET /" + b"y" * declared.URL_BYTES.most + b" HTTP/1.1\r\n\r\n"),
    ("url_bytes", 414, b"GET /?" + b"y" * 4 * declared.HEADER_BYTES.most),
]


@pytest.mark.parametrize(("name", "status", "sent"), TOO_LARGE)
async def test_a_head_that_is_too_large(serving: Serve, name: str, status: int, sent: bytes) -> None:
    served = await serving()
    said = await served.answer(sent)
    assert said.startswith(b"HTTP/1.1 %d " % status)
    assert f"x-limit: {name}".encode() in said
    assert b'{"error":{"message":' in said
    assert served.hits(name) == 1
    assert served.app.ended == []
    await eventually(lambda: served.connections, 0)


async def test_a_head_at_the_bounds_is_taken(serving: Serve) -> None:
    served = await serving()
    lines = b"".join(b"X-%03d: %s\r\n" % (n, b"y" * 240) for n in range(declared.HEADER_LINES.most - 2))
    url = b"/" + b"y" * (declared.URL_BYTES.most - 1)
    said = await served.answer(
        b"GET " + url + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + lines + b"\r\n"
    )
    assert said.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("first", [b"", b"\r\n", HEAD, GET])
async def test_a_head_that_does_not_come(serving: Serve, first: bytes) -> None:
    served = await serving(head_seconds=0.3, keep_alive_seconds=1)
    reader, writer = await served.connect(first)
    closed = asyncio.create_task(whole(reader))
    with contextlib.suppress(ConnectionError):
        while not closed.done():
            if first:
                writer.write(b"X: y\r\n" if first == HEAD else b"\r\n")
            await asyncio.sleep(0.02)
    said = await closed
    assert said.count(b"HTTP/1.1 408") == (first == HEAD)
    assert served.hits("head_seconds") == (first == HEAD)
    await eventually(lambda: served.connections, 0)
    writer.close()


@pytest.mark.parametrize("before", ["nothing", "half a head", "an answer"])
async def test_a_standstill_of_the_server_costs_no_connection(serving: Serve, before: str) -> None:
    """It is stopped for longer than any bound, in which a client sends its request, or only after which."""
    bounds = {"head_seconds": 0.5, "keep_alive_seconds": 0.5, "unread_seconds": 0.5}
    served = await serving(**bounds)
    first, rest = {"nothing": (b"", GET), "half a head": (HEAD, b"\r\n"), "an answer": (GET, GET)}[before]
    clients = [await served.connect(first) for _ in range(2)]
    await eventually(lambda: served.connections, 2)
    if before == "an answer":
        for reader, _ in clients:
            await reader.readuntil(b"ok")
    meanwhile, after = clients
    meanwhile[1].write(rest)
    time.sleep(1.0)  # the loop stands still, as in a process that is stopped
    for _ in range(10):
        await asyncio.sleep(0)
    after[1].write(rest)
    for reader, writer in clients:
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
        writer.close()
    assert served.hits("head_seconds") == 0


async def test_bytes_that_are_no_request(serving: Serve) -> None:
    served = await serving()
    said = await served.answer(b"\x16\x03\x01\x02\x00\x01\x00")
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"invalid_request"' in said


@pytest.mark.parametrize("before", [b"", GET], ids=["first", "pipelined"])
async def test_a_request_with_too_short_a_length_is_answered(serving: Serve, before: bytes) -> None:
    served = await serving()
    head = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\n"
    said = await served.answer(before + head + b'{"a": 12}')
    assert said.count(b"HTTP/1.1 200 ") == 1 + bool(before)
    assert said.endswith(b"ok")
    assert b"connection: close" in said.lower()
    await eventually(lambda: served.connections, 0)


async def test_a_broken_chunk_is_answered_in_shape(serving: Serve) -> None:
    served = await serving()
    said = await served.answer(
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\nzz\r\n"
    )
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"invalid_request"' in said
    await eventually(lambda: served.app.under_way, 0)
    await eventually(lambda: served.connections, 0)


async def test_the_longest_idle_connection_makes_room(serving: Serve) -> None:
    served = await serving(connections=4)
    silent = [await served.connect() for _ in range(4)]
    await eventually(lambda: served.connections, 4)
    reader, writer = await served.connect(GET)
    assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
    assert await whole(silent[0][0]) == b""
    assert served.hits("connections") == 1
    for _, each in [*silent, (reader, writer)]:
        each.close()


async def test_the_longest_body_makes_room_if_none_is_idle(serving: Serve) -> None:
    served = await serving(connections=3)
    post = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n"
    first, second, third = [await served.connect(sent) for sent in (GET.replace(b"/healthz", b"/held"), post, post)]
    await eventually(lambda: served.app.under_way, 3)
    assert b"200 OK" in await served.answer(HEAD + b"Connection: close\r\n\r\n")
    assert await whole(second[0]) == b""
    third[1].write(b"y" * 10)
    assert (await third[0].readuntil(b"ok")).startswith(b"HTTP/1.1 200")
    served.app.open.set()
    assert (await first[0].readuntil(b"ok")).startswith(b"HTTP/1.1 200")
    for _, writer in (first, second, third):
        writer.close()


async def test_no_connection_makes_room_for_an_answer_under_way(serving: Serve) -> None:
    served = await serving(connections=2)
    held = GET.replace(b"/healthz", b"/held")
    running = [await served.connect(held) for _ in range(2)]
    await eventually(lambda: served.app.under_way, 2)
    said = await served.answer(GET)
    assert said.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1\r\n" in said
    served.app.open.set()
    for reader, writer in running:
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()
    await eventually(lambda: served.connections, 0)
    assert b"200 OK" in await served.answer(HEAD + b"Connection: close\r\n\r\n")


async def test_requests_that_wait_behind_one_are_few(serving: Serve, caplog: pytest.LogCaptureFixture) -> None:
    served = await serving()
    said = await served.answer(GET.replace(b"/healthz", b"/held") + GET * (declared.PIPELINED.most + 2))
    assert said == b""
    assert served.hits("pipelined_requests") == 1
    served.app.open.set()
    await eventually(lambda: served.app.under_way, 0)
    assert "Exception in ASGI application" not in caplog.text


@pytest.mark.parametrize("path", [b"/endless", b"/large"])
async def test_a_client_that_does_not_read(serving: Serve, path: bytes) -> None:
    served = await serving(unread_seconds=0.5, keep_alive_seconds=1)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", served.port))
        client.sendall(GET.replace(b"/healthz", path))
        await eventually(lambda: len(served.app.ended), 1)
        await eventually(lambda: served.connections, 0)
    assert served.hits("unread_seconds") == 1


async def test_a_client_that_reads_slowly_gets_everything(serving: Serve) -> None:
    served = await serving(unread_seconds=2)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", served.port))
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, HEAD.replace(b"/healthz", b"/large") + b"Connection: close\r\n\r\n")
        size = 0
        while part := await loop.sock_recv(client, 1 << 20):
            size += len(part)
            await asyncio.sleep(0.003)
    assert size > 1 << 23


async def test_the_rest_of_a_refused_body_is_dropped(serving: Serve) -> None:
    served = await serving()
    post = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    reader, writer = await served.connect(post % 1000 + b"y" * 10)
    assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
    writer.write(b"y" * 990 + GET)
    assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
    writer.write(post % (100 * DROPPED_BYTES))
    await reader.readuntil(b"ok")
    sent = 0
    with contextlib.suppress(ConnectionError):
        while not writer.is_closing() and sent < 100 * DROPPED_BYTES:
            writer.write(b"y" * 65536)
            sent += 65536
            await writer.drain()
    assert sent < 100 * DROPPED_BYTES
    await eventually(lambda: served.connections, 0)


async def test_a_handshake_that_does_not_come(serving: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "HANDSHAKE_SECONDS", replace(declared.HANDSHAKE_SECONDS, most=1))
    config = write_certificate(tmp_path, "localhost")
    served = await serving(config)
    reader, writer = await served.connect()
    assert await whole(reader) == b""
    writer.close()
    context = own_certificate_context(config.tls_cert or "")
    async with httpx.AsyncClient(
        base_url=f"https://localhost:{served.port}", verify=context, trust_env=False
    ) as client:
        assert (await client.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "room"),
    [
        (1024, 1048576, 65536, 2048),
        (1024, 4096, 4096, 1920),
        (1024, 1024, 1024, 384),
        (64, 64, 64, 16),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY, 2048),
    ],
)
def test_files_are_left_for_engine_and_ledger(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int, room: int
) -> None:
    limit = [soft, hard]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limit))
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limit.__setitem__(0, wanted[0]))
    assert room_for_connections(2048) == room
    assert limit[0] == raised
