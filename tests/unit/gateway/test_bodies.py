"""Bodies arrive within bounds on size, time and memory, and take no place before they are whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.datastructures import Headers

from lab.testkit.engine import serve
from lab.testkit.waiting import eventually
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import create_app
from openclaw.gateway.errors import ApiError, ClientGoneError, answer
from openclaw.gateway.limits import STANDSTILL_SECONDS, Bodies, RateLimitError, RateLimits, take_body
from tests.unit.gateway.conftest import Stack, Starter
from tests.unit.gateway.test_window import Echo

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello?"}]}
HEADERS = Headers({"content-type": "application/json", "transfer-encoding": "chunked"})


class Upload:
    """A request whose parts a test sends; nothing comes after them."""

    def __init__(self, parts: Iterable[bytes] = (), *, last: bool = False, pause: float = 0.0) -> None:
        self.scope: dict[str, Any] = {}
        self.parts, self.last, self.pause = list(parts), last, pause

    async def receive(self) -> dict[str, Any]:
        if not self.parts:
            await asyncio.Event().wait()
        await asyncio.sleep(self.pause)
        part = self.parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(self.parts) or not self.last}

    async def read(self, bodies: Bodies, key: str = "a", headers: Headers = HEADERS) -> bytes:
        await bodies.read(self.scope, headers, self.receive, key)
        return take_body(self.scope)


async def refused(bodies: Bodies, upload: Upload, key: str = "a") -> ApiError:
    with pytest.raises(ApiError) as caught:
        await upload.read(bodies, key)
    take_body(upload.scope)
    return caught.value


async def test_a_whole_body_is_taken_once() -> None:
    bodies = Bodies(100)
    upload = Upload([b"ab", b"", b"cd"], last=True)
    await bodies.read(upload.scope, HEADERS, upload.receive, "a")
    assert bodies.held == 4
    assert take_body(upload.scope) == b"abcd"
    assert (bodies.held, take_body(upload.scope)) == (0, b"")


async def test_a_body_without_end_is_refused_at_its_bound() -> None:
    bodies = Bodies(100)
    error = await refused(bodies, Upload([b"x" * 60, b"x" * 60, b"x" * 60]))
    assert (error.status, error.limit) == (413, "body_bytes")
    assert bodies.held == 0


@pytest.mark.parametrize("parts", [[], [b"x"]])
async def test_a_body_that_stalls(parts: list[bytes]) -> None:
    error = await refused(Bodies(100, stall_seconds=0.05), Upload(parts))
    assert (error.status, error.limit) == (408, "body_stall_seconds")
    assert answer(error, {"path": "/"}).headers["connection"] == "close"


@pytest.mark.parametrize("bounds", [{"stall_seconds": 0.2}, {"seconds": 0.2}])
async def test_a_standstill_of_the_server_is_not_the_clients(bounds: dict[str, float]) -> None:
    """The rest of a body comes while the process is stopped for longer than any bound."""
    bodies, came = Bodies(100, **bounds), asyncio.Event()
    upload = Upload([b"a"], last=True)

    async def receive() -> dict[str, Any]:
        if upload.parts:
            return {"type": "http.request", "body": upload.parts.pop(), "more_body": True}
        await came.wait()
        return {"type": "http.request", "body": b"b", "more_body": False}

    reading = asyncio.create_task(bodies.read(upload.scope, HEADERS, receive, "a"))
    await eventually(lambda: bodies.held, 1)
    time.sleep(STANDSTILL_SECONDS + 0.3)  # the loop stands still, as in a process that is stopped
    asyncio.get_running_loop().call_later(0.1, came.set)  # read after the timers that are due
    await reading
    assert take_body(upload.scope) == b"ab"


async def test_a_body_that_trickles() -> None:
    bodies = Bodies(10000, stall_seconds=30, seconds=0.1)
    upload = Upload([b"x"] * 5000, pause=0.005)
    error = await refused(bodies, upload)
    assert (error.status, error.limit) == (408, "body_seconds")
    assert upload.parts


async def test_a_large_body_may_take_longer() -> None:
    bodies = Bodies(1 << 20, seconds=0.05)
    upload = Upload([b"x" * 16384] * 20, last=True, pause=0.005)
    assert len(await upload.read(bodies)) == 20 * 16384


async def test_a_client_that_leaves() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGoneError):
        await Bodies(100).read({}, HEADERS, receive, "a")


@asynccontextmanager
async def reading(bodies: Bodies, *uploads: tuple[Upload, str]) -> AsyncIterator[None]:
    """Read uploads that do not end, for the length of the block."""
    tasks = [asyncio.create_task(upload.read(bodies, key)) for upload, key in uploads]
    sizes = sum(len(part) for upload, _ in uploads for part in upload.parts)
    await eventually(lambda: bodies.held, sizes)
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for upload, _ in uploads:
        take_body(upload.scope)


async def test_one_key_cannot_fill_the_memory_for_another() -> None:
    bodies = Bodies(1000, memory=1000)
    async with reading(bodies, (Upload([b"x" * 500]), "a"), (Upload([b"x" * 450]), "a")):
        error = await refused(bodies, Upload([b"x" * 100], last=True))
        assert (error.status, error.limit, error.retry_after) == (503, "body_memory", 1)
        assert len(await Upload([b"x" * 400], last=True).read(bodies, "b")) == 400
        assert (await refused(bodies, Upload([b"x" * 600], last=True), "b")).status == 503
    assert bodies.held == 0
    assert len(await Upload([b"x" * 1000], last=True).read(bodies)) == 1000


async def test_a_key_may_send_few_bodies_at_a_time() -> None:
    bodies = Bodies(100, most_of_a_key=2)
    async with reading(bodies, (Upload([b"x"]), "a"), (Upload([b"x"]), "a")):
        error = await refused(bodies, Upload([b"x"], last=True))
        assert isinstance(error, RateLimitError)
        assert await Upload([b"x"], last=True).read(bodies, "b") == b"x"
    assert await Upload([b"x"], last=True).read(bodies) == b"x"


def test_the_default_share_of_a_key() -> None:
    assert RuntimeConfig().concurrent_per_key is None
    assert RuntimeConfig(api_key="k").concurrent_per_key is None
    assert RuntimeConfig(api_keys_file="keys").concurrent_per_key == 256
    assert RuntimeConfig(api_keys_file="keys", max_requests=2).concurrent_per_key == 1
    assert RuntimeConfig(api_keys_file="keys", rate_limit_concurrent=1000).concurrent_per_key == 1000


async def test_the_share_of_a_key_is_a_limit() -> None:
    limits = RateLimits.of(RuntimeConfig(api_keys_file="keys", max_requests=8))
    for _ in range(2):
        await limits.enter("a")
    with pytest.raises(RateLimitError):
        await limits.enter("a")
    await limits.enter("b")


async def stall(stack: Stack, count: int, **headers: str) -> list[asyncio.StreamWriter]:
    """Open requests whose bodies do not go on."""
    address = urlsplit(stack.url)
    lines = "".join(f"{name}: {value}\r\n" for name, value in {"content-type": "application/json", **headers}.items())
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: 100\r\n\r\n"
    writers = []
    for _ in range(count):
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(head.encode() + b'{"messages"')
        await writer.drain()
        writers.append(writer)
    return writers


async def test_stalled_bodies_take_no_place(start: Starter) -> None:
    stack: Stack = await start(max_requests=2, rate_limit_concurrent=2, rate_limit_requests=3)
    stack.say("Hi.", "Hi.")
    writers = await stall(stack, 10)
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        for _ in range(2):
            assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
    for writer in writers:
        writer.close()
    await eventually(lambda: stack.metric("openclaw_requests_total", code="499"), 10)


async def test_the_stalled_bodies_of_a_key_are_bounded(start: Starter, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text("a:key-a\nb:key-b\n")
    stack: Stack = await start(api_keys_file=str(keys), max_requests=8)
    stack.say("Hi.")
    writers = await stall(stack, 2, authorization="Bearer key-a")

    async def ask(key: str) -> int:
        headers = {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=stack.url, trust_env=False, headers=headers) as client:
            return (await client.post("/v1/chat/completions", json=CHAT)).status_code

    await eventually(lambda: ask("key-a"), 429)
    assert await ask("key-b") == 200
    assert stack.metric("openclaw_rate_limited_total", key="a", limit="concurrent") >= 1
    assert stack.metric("openclaw_limit_hits_total", limit="concurrent") >= 1
    for writer in writers:
        writer.close()


async def test_a_stranger_at_the_log_in_takes_no_place_from_another(start: Starter, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice:alice-key-123456\n")
    keys.chmod(0o600)
    stack = await start(api_keys_file=str(keys), rate_limit_concurrent=1)
    app = create_app(stack.service, CollectorRegistry(), views=Echo())
    path, own = "/window/log_in", {"sec-fetch-site": "same-origin"}
    async with serve(app) as url, httpx.AsyncClient(base_url=url, trust_env=False, headers=own) as browser:

        async def log_in(address: str) -> int:
            form = {"key": "alice-key-123456"}
            return (await browser.post(path, data=form, headers={"x-forwarded-for": address})).status_code

        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        head = [f"POST {path} HTTP/1.1", f"Host: {urlsplit(url).netloc}", "Sec-Fetch-Site: same-origin"]
        head += ["Content-Type: application/x-www-form-urlencoded", "Content-Length: 8", "X-Forwarded-For: 203.0.113.7"]
        writer.write("\r\n".join([*head, "", "key"]).encode())
        async with asyncio.timeout(10):
            while await log_in("203.0.113.7") != 429:
                await asyncio.sleep(0.01)
        assert await log_in("203.0.113.8") == 303
        writer.close()
        del reader
