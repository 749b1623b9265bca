"""The door to the model passes an episode's calls on, and nothing else."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from agentrl.sandbox import model_door as module
from agentrl.sandbox.model_door import model_door

KEY = "episode-key-1234"
CHAT = "/v1/chat/completions"
PATIENT_S = 60.0


@dataclass
class Gateway:
    """Stands in for the gateway: what it saw, and what it waits for between two pieces of an answer."""

    url: str = ""
    seen: list[dict[str, Any]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    first: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message.get("more_body"):
                break
        self.seen.append({"path": scope["path"], "headers": dict(scope["headers"]), "body": body, "scope": scope})
        headers = [(b"content-type", b"text/event-stream"), (b"x-internal", b"secret"), (b"set-cookie", b"a=b")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: one\n\n", "more_body": True})
        self.first.set()
        leaving = asyncio.ensure_future(receive())
        waiting = asyncio.ensure_future(self.gate.wait())
        await asyncio.wait({leaving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            self.left.set()
        else:
            await send({"type": "http.response.body", "body": b"data: two\n\n"})
        for task in (leaving, waiting):
            task.cancel()


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    task = asyncio.create_task(server._serve())
    async with asyncio.timeout(PATIENT_S):
        while not server.started:
            await asyncio.sleep(0.002)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await task


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    gateway = Gateway()
    async with serving(gateway) as gateway.url:
        yield gateway
        gateway.gate.set()


@asynccontextmanager
async def client_of(socket: Path, key: str | None = KEY) -> AsyncIterator[httpx.AsyncClient]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    async with httpx.AsyncClient(
        transport=transport, base_url="http://door", headers=headers, timeout=PATIENT_S
    ) as client:
        yield client


@pytest.fixture
async def door(gateway: Gateway, short_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with model_door(gateway.url, KEY, short_path / "door") as socket, client_of(socket) as client:
        yield client


async def test_an_answer_streams_as_it_comes(door: httpx.AsyncClient, gateway: Gateway) -> None:
    async with door.stream("POST", CHAT, json={"model": "m"}) as answer:
        pieces = answer.aiter_raw()
        assert await anext(pieces) == b"data: one\n\n"  # the gateway has not written the rest
        gateway.gate.set()
        assert b"".join([piece async for piece in pieces]) == b"data: two\n\n"
    assert answer.headers["content-type"] == "text/event-stream"
    assert not {"x-internal", "set-cookie", "server"} & set(answer.headers)


async def test_the_gateway_sees_the_key_and_no_other_header_of_the_sandbox(
    door: httpx.AsyncClient, gateway: Gateway
) -> None:
    gateway.gate.set()
    await door.post(f"{CHAT}?debug=1", json={"model": "m"}, headers={"X-Session-Id": "other", "Cookie": "a=b"})
    (seen,) = gateway.seen
    names = {name.decode() for name in seen["headers"]} - {"host", "accept", "connection", "user-agent"}
    assert names == {"authorization", "accept-encoding", "content-type", "content-length"}
    assert seen["headers"][b"authorization"] == f"Bearer {KEY}".encode()
    assert json.loads(seen["body"]) == {"model": "m"}
    assert seen["scope"]["query_string"] == b""


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/v1/feedback", 404),
        ("GET", "/metrics", 404),
        ("GET", "/v1/models/", 404),
        ("POST", "/v1/chat/completions/../feedback", 404),
        ("POST", "//v1/chat/completions", 404),
    ],
)
async def test_other_routes_are_refused(
    door: httpx.AsyncClient, gateway: Gateway, method: str, path: str, status: int
) -> None:
    answer = await door.send(door.build_request(method, "http://door", extensions={"target": path.encode()}))
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert gateway.seen == []


@pytest.mark.parametrize("key", [None, "other", KEY[:-1], KEY + "x"])
async def test_another_key_is_refused(gateway: Gateway, short_path: Path, key: str | None) -> None:
    async with model_door(gateway.url, KEY, short_path / "door") as socket, client_of(socket, key) as client:
        answer = await client.post(CHAT, json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert gateway.seen == []


async def test_a_client_that_leaves_ends_the_call_of_the_gateway(door: httpx.AsyncClient, gateway: Gateway) -> None:
    async with asyncio.timeout(PATIENT_S), door.stream("POST", CHAT, json={}) as answer:
        await anext(answer.aiter_raw())
    async with asyncio.timeout(PATIENT_S):
        await gateway.left.wait()


async def test_a_body_that_is_too_large_is_refused(
    door: httpx.AsyncClient, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BODY", 1000)
    assert (await door.post(CHAT, content=b"x" * 1001)).status_code == 413
    assert gateway.seen == []


@pytest.mark.parametrize("body", [b"x" * 1000, b"not json", b"[" * 900, b"", b"\xff\x00"])
async def test_a_body_goes_on_unread(door: httpx.AsyncClient, gateway: Gateway, body: bytes) -> None:
    gateway.gate.set()
    await door.post(CHAT, content=body)
    assert [each["body"] for each in gateway.seen] == [body]


async def test_a_large_body_does_not_hold_the_pool_up(gateway: Gateway, short_path: Path) -> None:
    """Of JSON that takes seconds to read."""
    gateway.gate.set()
    body = b"[" + b"[]," * 2_000_000 + b"1]"

    def send(socket: Path) -> int:
        transport = httpx.HTTPTransport(uds=str(socket))
        with httpx.Client(transport=transport, headers={"Authorization": f"Bearer {KEY}"}, timeout=PATIENT_S) as client:
            return client.post(f"http://door{CHAT}", content=body).status_code

    longest = 0.0
    async with model_door(gateway.url, KEY, short_path / "door") as socket:
        sending = asyncio.create_task(asyncio.to_thread(send, socket))
        while not sending.done():
            begun = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - begun)
    assert sending.result() == 200
    assert longest < 0.25  # of this thread's own time, so a busy machine does not count


async def test_requests_under_way_are_bounded(
    gateway: Gateway, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_REQUESTS", 1)
    async with AsyncExitStack() as stack:
        socket = await stack.enter_async_context(model_door(gateway.url, KEY, short_path / "door"))
        client = await stack.enter_async_context(client_of(socket))
        held = await stack.enter_async_context(client.stream("POST", CHAT, json={}))
        refused = await client.post(CHAT, json={})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        gateway.gate.set()
        await held.aread()
        async with asyncio.timeout(PATIENT_S):
            while (await client.post(CHAT, json={})).status_code != 200:
                pass


async def test_connections_are_bounded(gateway: Gateway, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 2)
    async with model_door(gateway.url, KEY, short_path / "door") as socket:
        kept = [await asyncio.open_unix_connection(socket) for _ in range(2)]
        async with asyncio.timeout(PATIENT_S):
            reader, writer = await asyncio.open_unix_connection(socket)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            with suppress(ConnectionError):  # the kernel may say so before the end does
                assert await reader.read() == b""
        for _, each in [*kept, (reader, writer)]:
            each.close()


async def test_a_gateway_that_is_not_there_is_a_bad_gateway(short_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(None) as url:
        pass
    async with model_door(url, KEY, short_path / "door") as socket, client_of(socket) as client:
        answer = await client.post(CHAT, json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "gateway_failed")
    assert KEY not in caplog.text


async def test_the_socket_is_private_and_goes_with_the_door(gateway: Gateway, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30) / "door"
    async with model_door(gateway.url, KEY, folder) as socket:
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not socket.exists()


async def test_a_door_closes_while_a_call_is_under_way(gateway: Gateway, short_path: Path) -> None:
    async with AsyncExitStack() as stack:
        client = None
        async with model_door(gateway.url, KEY, short_path / "door") as socket:
            client = await stack.enter_async_context(client_of(socket))
            answer = await stack.enter_async_context(client.stream("POST", CHAT, json={}))
            await gateway.first.wait()
        with pytest.raises(httpx.RemoteProtocolError):
            await answer.aread()
        async with asyncio.timeout(PATIENT_S):
            await gateway.left.wait()
