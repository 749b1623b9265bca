"""The host's half of a door to the model: a Unix socket that passes an episode's calls on to the gateway.

Guarantees: only `ROUTES` are passed on, only with the episode's key, and only to one address. Of a request's headers the
gateway sees content type and key; of an answer's the sandbox sees content type and ``Retry-After``. Answers stream as they
come. When the client leaves, the request to the gateway ends. Connections, requests under way and bodies are bounded, so a
program inside cannot use up the host; no body is parsed here. The key is never logged. Errors have the shape of OpenAI's API.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentrl.sandbox.gateway_health import REPLIES, GatewayHealth
from agentrl.sandbox.unix_socket import bound_at
from groundwork.private_files import private_folder

logger = logging.getLogger(__name__)
ROUTES = {**dict.fromkeys([*sorted(REPLIES), "/v1/messages/count_tokens"], "POST"), "/v1/models": "GET"}
MAX_BODY = 16 << 20
MAX_REQUESTS = 8
MAX_CONNECTIONS = 64
BODY_S = 60.0
CONNECT_SECONDS = 10.0
LEAVE_S = 1
POLL_SECONDS = 0.005
QUIET = logging.getLogger(f"{__name__}.http")
QUIET.setLevel(logging.CRITICAL)
"""A program inside could fill the log with malformed requests otherwise."""


class Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class _Protocol(H11Protocol):
    """Bounds the connections of a door."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.logger = QUIET

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process that the door is part of."""
        yield


class Forward:
    """The ASGI application of one door."""

    def __init__(self, client: httpx.AsyncClient, key: str, health: GatewayHealth) -> None:
        self._client = client
        self._health = health
        self._wanted = f"Bearer {key}".encode()
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            self._admit(request)
            if self._under_way >= MAX_REQUESTS:
                raise Refusal(503, "too_many_requests", f"{MAX_REQUESTS} requests are under way; wait for one to end")
            self._under_way += 1
            try:
                await self._until_left(request, await _body(request), send)
            finally:
                self._under_way -= 1
        except Refusal as refusal:
            kind = "invalid_request_error" if refusal.status < 500 else "server_error"
            error = {"message": refusal.message, "type": kind, "param": None, "code": refusal.code}
            headers = {"retry-after": "1"} if refusal.status == 503 else None
            await JSONResponse({"error": error}, refusal.status, headers)(scope, receive, send)
        except ClientDisconnect:
            return

    def _admit(self, request: Request) -> None:
        """Raise Refusal unless the key and the route are right."""
        given = request.headers.get("authorization") or f"Bearer {request.headers.get('x-api-key', '')}"
        if not hmac.compare_digest(given.encode(), self._wanted):
            raise Refusal(401, "invalid_api_key", "this is not the key of this episode")
        method = ROUTES.get(request.url.path)
        if method is None:
            raise Refusal(404, "unknown_route", f"the sandbox reaches {', '.join(ROUTES)} only")
        if request.method != method:
            raise Refusal(405, "wrong_method", f"use {method} for {request.url.path}")

    async def _until_left(self, request: Request, body: Sequence[bytes], send: Send) -> None:
        """Pass a request on until it is answered or the client leaves."""
        work = asyncio.create_task(self._pass_on(request, body, send))
        leaving = asyncio.create_task(_left(request))
        try:
            await asyncio.wait({work, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, leaving):
                if not task.done():
                    task.cancel()
            await asyncio.wait({work, leaving})
        if not work.cancelled():
            work.result()

    async def _pass_on(self, request: Request, body: Sequence[bytes], send: Send) -> None:
        headers = {"authorization": self._wanted.decode(), "accept-encoding": "identity"}
        content = None
        if request.method == "POST":
            headers |= {"content-type": "application/json", "content-length": str(sum(map(len, body)))}
            content = _pieces(body)
        begun = False
        call = self._health.call(request.url.path)
        try:
            async with self._client.stream(
                request.method, request.url.path, content=content, headers=headers
            ) as answer:
                kept = [
                    (name, answer.headers[name]) for name in ("content-type", "retry-after") if name in answer.headers
                ]
                start = [(name.encode(), value.encode()) for name, value in kept]
                call.began(answer.status_code, answer.headers.get("content-type", ""))
                await send({"type": "http.response.start", "status": answer.status_code, "headers": start})
                begun = True
                async for chunk in answer.aiter_raw():
                    call.part(chunk)
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                call.ended()
                await send({"type": "http.response.body", "body": b""})
        except httpx.HTTPError as error:
            call.broke(f"its connection failed ({type(error).__name__})")
            logger.warning("the gateway failed a call from a sandbox: %s", type(error).__name__)
            if not begun:
                raise Refusal(502, "gateway_failed", "the model's gateway does not answer") from error
            # The server cuts a response that is not completed, so the client sees that it is.


async def _body(request: Request) -> list[bytes]:
    """Return the pieces of the body, which nobody has looked into: the gateway reads what a program inside wrote, in a process of its own.

    Raises:
        Refusal: it is too large, or comes too slowly.
    """
    parts: list[bytes] = []
    left = MAX_BODY
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                parts.append(chunk)
                left -= len(chunk)
                if left < 0:
                    raise Refusal(413, "body_too_large", f"a request has at most {MAX_BODY} bytes")
    except TimeoutError as error:
        raise Refusal(408, "body_too_slow", f"the body did not arrive within {BODY_S:g} s") from error
    return parts if request.method == "POST" else []


async def _pieces(parts: Sequence[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces of a body; one piece of many megabytes would hold up the event loop."""
    for part in parts:
        yield part


async def _left(request: Request) -> None:
    """Return when the client leaves."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def model_door(base_url: str, key: str, folder: Path, health: GatewayHealth | None = None) -> AsyncIterator[Path]:
    """Open a door for one episode, and yield its socket, of mode 0600 in a private folder.

    Args:
        base_url: of the gateway, without ``/v1``.
        key: of the episode; what the programs inside use, and what the gateway gets.
        folder: of this door only; it is made, and only this user can enter it.
        health: learns which calls the gateway failed.
    """
    private_folder(folder)
    path = folder / "model.sock"
    with suppress(FileNotFoundError):
        path.unlink()
    listening = bound_at(path)
    path.chmod(0o600)
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
    limits = httpx.Limits(max_connections=MAX_REQUESTS)
    try:
        async with httpx.AsyncClient(base_url=base_url, timeout=timeout, limits=limits, trust_env=False) as client:
            config = uvicorn.Config(
                Forward(client, key, health or GatewayHealth()),
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=LEAVE_S,
            )
            server = _Server(config)
            serving = asyncio.create_task(server.serve(sockets=[listening]), name="model door")
            try:
                while not server.started and not serving.done():
                    await asyncio.sleep(POLL_SECONDS)
                yield path
            finally:
                server.should_exit = True
                await serving
    finally:
        listening.close()
        path.unlink(missing_ok=True)
