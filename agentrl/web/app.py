"""The lease protocol as an HTTP API, for a pool or a router.

Guarantees: errors have the shape of `agentrl.protocol.Refusal`, also those that the framework raises. A request's body is read
within bounds on its size, its time and the number of its values. Without the key nothing but ``/healthz`` and ``/readyz``
answers, and no body is read. The key is compared in constant time. A server without a key answers to loopback names only, and
every POST must be JSON by its content type, so a web page in a browser of this machine cannot use it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import math
from typing import TypeVar

from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrl.exceptions import AgentError, InfraError, InternalError, InvalidError, Kind, NotFoundError
from agentrl.protocol import (
    MAX_ITEMS,
    Answer,
    ErrorBody,
    EvaluateRequest,
    LeaseRequest,
    LeaseService,
    Refusal,
    RenewRequest,
    ResetRequest,
    StepRequest,
    is_quick,
)
from groundwork.network import is_loopback

logger = logging.getLogger(__name__)
STATUS: dict[Kind, int] = {
    "invalid": 400,
    "capacity": 429,
    "not_found": 404,
    "timeout": 504,
    "infra": 503,
    "internal": 500,
}
STATUS_OF_CODE = {
    "unauthorized": 401,
    "wrong_host": 403,
    "wrong_method": 405,
    "body_too_slow": 408,
    "body_too_large": 413,
    "not_json": 415,
}
JSON = "application/json"
OPEN_PATHS = frozenset({"/healthz", "/readyz"})
M = TypeVar("M", bound=BaseModel)
BODY_S = 30.0
SHOWN_ERRORS = 3
MAX_BODY_BYTES = 16 * 2**20


def response(error: AgentError) -> Response:
    """Return the answer for an error, with ``Retry-After`` where it is known."""
    status = STATUS_OF_CODE.get(error.code, STATUS[error.kind])
    headers = {} if error.retry_after_s is None else {"retry-after": str(math.ceil(error.retry_after_s))}
    return Response(Refusal(error=ErrorBody.of(error)).model_dump_json(), status, headers, JSON)


def answer_errors(app: FastAPI) -> None:
    """Answer all errors of an application's routes in this shape."""

    @app.exception_handler(AgentError)
    async def own(_: Request, error: AgentError) -> Response:
        return response(error)

    @app.exception_handler(HTTPException)
    async def of_the_framework(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            return response(InvalidError(f"{request.method} is not for {request.url.path}", code="wrong_method"))
        return response(NotFoundError(f"there is no route {request.url.path}", code="unknown_route"))

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return response(InternalError("the server has a defect; see its log", code="defect"))


class AuthMiddleware:
    """Pass on requests with the key of the server; stateless."""

    def __init__(self, app: ASGIApp, key: str | None) -> None:
        self._app = app
        self._digest = _digest(key) if key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer with a refusal; refuse WebSockets."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        if scope["type"] == "http":
            try:
                self._check(scope["method"], scope["path"], Headers(scope=scope))
            except AgentError as error:
                await response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, method: str, path: str, headers: Headers) -> None:
        """Raise InvalidError if the request may not enter."""
        if self._digest is None:
            if not is_loopback(_host(headers.get("host", ""))):
                raise InvalidError("a server without a key answers to loopback names only", code="wrong_host")
        elif path not in OPEN_PATHS:
            scheme, _, sent = headers.get("authorization", "").partition(" ")
            if not hmac.compare_digest(self._digest, _digest(sent.strip() if scheme.lower() == "bearer" else "")):
                raise InvalidError(
                    "missing or wrong key; send 'Authorization: Bearer KEY' with the key of this server",
                    code="unauthorized",
                )
        if method == "POST" and headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise InvalidError(f"the body must be JSON; send 'Content-Type: {JSON}'", code="not_json")


def _host(header: str) -> str:
    """Return the name in a Host header, without its port."""
    return header.rpartition("]")[0].lstrip("[") if header.startswith("[") else header.partition(":")[0]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


async def read(request: Request, kind: type[M], most_bytes: int) -> M:
    """Return the body as a ``kind``.

    Raises:
        InvalidError: the body is larger than ``most_bytes``, slower than `BODY_S`, no ``kind``, or of more values than
            the event loop reads in time.
        InfraError: the client went away.
    """
    body = bytearray()
    try:
        stated = request.headers.get("content-length", "")
        if stated.isdecimal() and int(stated) > most_bytes:
            raise _too_large(most_bytes)
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > most_bytes:
                    raise _too_large(most_bytes)
        if not is_quick(body):
            raise InvalidError(
                f"the body has more than {MAX_ITEMS} commas and brackets; send less", code="body_too_large"
            )
        return kind.model_validate_json(bytes(body))
    except TimeoutError as error:
        raise InvalidError(f"the body took longer than {BODY_S:g} s; send it faster", code="body_too_slow") from error
    except ClientDisconnect as error:
        raise InfraError("the client went away", code="client_gone") from error
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        shown = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg']}" for item in found[:SHOWN_ERRORS]
        )
        raise InvalidError(f"the body is not a {kind.__name__}: {shown}", code="invalid_request") from error


def _too_large(most_bytes: int) -> InvalidError:
    return InvalidError(f"the body is larger than {most_bytes} bytes; send less", code="body_too_large")


def create_app(
    service: LeaseService, registry: CollectorRegistry, *, key: str | None, most_body_bytes: int = MAX_BODY_BYTES
) -> FastAPI:
    """Return the application of a service.

    Args:
        service: answers the requests.
        registry: of its metrics.
        key: that clients must send; None admits every client that uses a loopback name.
        most_body_bytes: of a request.
    """
    app = FastAPI(title="agentrl", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(AuthMiddleware, key=key)
    answer_errors(app)

    @app.post("/v1/lease")
    async def lease(request: Request) -> Response:
        return _ok(await service.lease(await read(request, LeaseRequest, most_body_bytes)))

    @app.post("/v1/lease/{lease_id}/renew")
    async def renew(lease_id: str, request: Request) -> Response:
        return _ok(await service.renew(lease_id, await read(request, RenewRequest, most_body_bytes)))

    @app.post("/v1/lease/{lease_id}/reset")
    async def reset(lease_id: str, request: Request) -> Response:
        return _ok(await service.reset(lease_id, await read(request, ResetRequest, most_body_bytes)))

    @app.post("/v1/lease/{lease_id}/step")
    async def step(lease_id: str, request: Request) -> Response:
        return _ok(await service.step(lease_id, await read(request, StepRequest, most_body_bytes)))

    @app.post("/v1/lease/{lease_id}/evaluate")
    async def evaluate(lease_id: str, request: Request) -> Response:
        return _ok(await service.evaluate(lease_id, await read(request, EvaluateRequest, most_body_bytes)))

    @app.delete("/v1/lease/{lease_id}")
    async def release(lease_id: str) -> Response:
        return _ok(await service.release(lease_id))

    @app.get("/v1/status")
    async def status() -> Response:
        return _ok(await service.status())

    @app.get("/healthz")
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @app.get("/readyz")
    async def readyz() -> Response:
        ready = (await service.status()).ready
        return PlainTextResponse("ready\n" if ready else "not ready\n", 200 if ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(generate_latest(registry).decode(), media_type="text/plain; version=0.0.4")

    return app


def _ok(answer: Answer) -> Response:
    text = answer.model_dump_json()
    return Response('{"ok":true' + (f",{text[1:]}" if text != "{}" else "}"), media_type=JSON)
