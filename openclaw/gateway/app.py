"""The HTTP application: routes, keys, limits, and errors in OpenAI's shape.

Every request passes `openclaw.gateway.guard` first.
Routes: ``POST /v1/chat/completions``, ``POST /v1/feedback``, ``POST /v1/sessions/{id}/done``,
``DELETE /v1/sessions/{id}``, ``GET /v1/rollouts``, ``GET /v1/models``, ``GET /v1/models/{name}``, ``GET /healthz``
(open), ``GET /metrics``. Guarantees: every request is counted with its status, a streamed one when it ends, and with
the status of the error that it ended in; a body beyond the limit is not read. The application owns nothing but the
tasks that sweep sessions and look at changed files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from openclaw.gateway.access_log import key_name, note_reply
from openclaw.gateway.auth import Keyring
from openclaw.gateway.chat import ChatService
from openclaw.gateway.errors import ApiError, from_ledger
from openclaw.gateway.guard import Guard
from openclaw.gateway.limits import RateLimits
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.openapi import describe
from openclaw.gateway.reload import Reloader
from openclaw.gateway.reply import Reply
from openclaw.gateway.schema import parse_request
from openclaw.gateway.stream import (
    CLIENT_GONE,
    COMMENT,
    ClientGoneError,
    EventStream,
    answer_or_gone,
    done_within,
    event,
)
from openclaw.ledger.exceptions import LedgerError, UnknownRecordError

logger = logging.getLogger(__name__)

LONGEST_SWEEP_SECONDS = 30.0
SECONDS_A_DAY = 86400.0
CHAT_PATH = "/v1/chat/completions"


class GuardedApp(FastAPI):
    """An application behind the guard, which also sees the answers to defects; ``reloader`` reads keys again."""

    reloader: Reloader
    guard: Callable[[ASGIApp], Guard]

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI description of all routes."""
        if self.openapi_schema is None:
            describe(super().openapi())
        return super().openapi()

    def build_middleware_stack(self) -> ASGIApp:
        """Put the guard before everything else."""
        return self.guard(super().build_middleware_stack())


def create_app(service: ChatService, registry: CollectorRegistry) -> GuardedApp:
    """Return the application that answers with ``service`` and shows the metrics of ``registry``.

    Raises:
        ConfigError: when the keys file cannot be used.
    """
    config = service.config
    keyring = Keyring(config.api_key, config.api_keys_file)
    reloader = Reloader(service.metrics)
    if keyring.path is not None:
        reloader.watch([keyring.path], keyring.reload)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(_sweep(service)), asyncio.create_task(reloader.run())]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await service.close()

    def count_refused(path: str, status: int) -> None:
        if path == CHAT_PATH:
            _count(service.metrics, status)

    app = GuardedApp(title="OpenClaw-RL gateway", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.reloader = reloader
    app.guard = partial(
        Guard,
        keyring=keyring,
        limits=RateLimits.of(config),
        metrics=service.metrics,
        on_refused=count_refused,
        log_contents=config.log_contents,
    )
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(LedgerError, _ledger_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _internal_error)

    @app.post(CHAT_PATH)
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation, streamed or whole."""
        metrics = service.metrics
        try:
            response = await _chat(service, request)
        except ApiError as error:
            _count(metrics, error.status)
            raise
        except ClientGoneError:
            _count(metrics, CLIENT_GONE)
            return Response(status_code=CLIENT_GONE)
        except Exception:
            _count(metrics, 500)
            raise
        if not isinstance(response, EventStream):
            _count(metrics, 200)
        return response

    @app.post("/v1/sessions/{session_id:path}/done")
    async def session_done(session_id: str) -> Response:
        """End a session without a further turn; sent again, it has no further effect."""
        if not await service.sessions.end(session_id):
            raise ApiError(404, f"there is no session {session_id!r}", code="session_not_found", param="session_id")
        return _json({"id": session_id, "object": "session", "done": True})

    @app.delete("/v1/sessions/{session_id:path}")
    async def forget_session(session_id: str) -> Response:
        """Delete all data of a session; ``erased`` is false while a reader of the file keeps old bytes on disk."""
        try:
            gone = await service.sessions.forget(session_id)
        except UnknownRecordError as error:
            raise ApiError(
                404, f"there is no session {session_id!r}", code="session_not_found", param="session_id"
            ) from error
        erased = await service.sessions.erase()
        return _json({"id": session_id, "object": "session", "deleted": True, **asdict(gone), "erased": erased})

    @app.post("/v1/feedback")
    async def feedback(request: Request) -> Response:
        """Take what a person says about a reply."""
        body = await _read_body(request, config.max_body_bytes)
        return _json(await service.feedback.take(body, key_name(request.scope)))

    @app.get("/v1/rollouts")
    async def rollouts(since: str = "0", after: str = "0") -> Response:
        """Hand recorded turns to a collector."""
        return _json(await service.rollouts.page(since, after))

    @app.get("/v1/models")
    async def models() -> Response:
        """List the one model."""
        return _json({"object": "list", "data": [_model(service)]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        """Describe the model."""
        if name != service.config.model_name:
            raise ApiError(
                404,
                f"there is no model {name!r}; use {service.config.model_name!r}",
                code="model_not_found",
                param="model",
            )
        return _json(_model(service))

    @app.get("/healthz")
    async def healthz() -> Response:
        """Say that requests are taken."""
        return _json({"status": "ok", "model": service.config.model_name, "sessions": len(service.sessions)})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Show the numbers of the runtime."""
        service.metrics.sessions.set(len(service.sessions))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


async def _chat(service: ChatService, request: Request) -> Response:
    body = await _read_body(request, service.config.max_body_bytes)
    chat_request, raw = parse_request(body)
    starting = asyncio.ensure_future(service.start(chat_request, raw, request.headers))
    if chat_request.stream:
        if await done_within(request, starting, service.config.keepalive_seconds):
            starting.result()
        return _stream(service, request, starting)
    try:
        reply = await answer_or_gone(request, starting)
    except BaseException:
        # The client may leave in the very moment in which the reply begins.
        if starting.done() and not starting.cancelled() and starting.exception() is None:
            starting.result().give_up()
        raise
    note_reply(request.scope, reply)
    headers = _reply_headers(reply)
    try:
        result = await answer_or_gone(request, service.whole(reply))
    except ClientGoneError:
        service.sessions.undelivered(reply.context, reply.capture.prompt.id)
        raise
    finally:
        reply.give_up()
    return _json(result, {**headers, "x-weight-version": reply.capture.weight_version})


def _stream(service: ChatService, request: Request, starting: asyncio.Task[Reply]) -> EventStream:
    """Return the stream of a reply that has begun, or will: until then the reader gets comments."""

    async def held() -> AsyncGenerator[bytes, None]:
        yield COMMENT
        try:
            reply = await starting
        except ApiError as error:
            yield event(error.body())
            return
        note_reply(request.scope, reply)
        async with aclosing(service.events(reply)) as events:
            async for data in events:
                yield data

    def ended(status: int) -> None:
        if not starting.done():
            starting.cancel()
        elif not starting.cancelled() and (failure := starting.exception()) is not None:
            status = failure.status if isinstance(failure, ApiError) else status
        elif not starting.cancelled():
            reply = starting.result()
            reply.give_up()
            if status != 200:
                service.sessions.undelivered(reply.context, reply.capture.prompt.id)
            status = reply.error.status if reply.error else 200 if reply.recorded else status
        _count(service.metrics, status)

    source, headers = held(), dict[str, str]()
    if starting.done():
        reply = starting.result()
        note_reply(request.scope, reply)
        source, headers = service.events(reply), _reply_headers(reply)
    return EventStream(source, headers, ended, keepalive_seconds=service.config.keepalive_seconds)


def _count(metrics: GatewayMetrics, status: int) -> None:
    """Count a chat completion that is over."""
    metrics.requests.labels(code=str(status)).inc()
    if status == 503:
        metrics.refused.inc()


def _reply_headers(reply: Reply) -> dict[str, str]:
    """Return the headers of a reply; of a stream, the weight version is the one of its first tokens."""
    return {
        "x-request-id": reply.capture.prompt.id,
        "x-weight-version": reply.capture.weight_version,
        "x-turn-type": reply.context.kind,
    }


async def _read_body(request: Request, limit: int) -> bytes:
    too_large = ApiError(413, f"the body has more than {limit} bytes; send less", code="request_too_large")
    stated = request.headers.get("content-length", "0")
    if stated.isdigit() and int(stated) > limit:
        raise too_large
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise too_large
    return bytes(body)


async def _sweep(service: ChatService) -> None:
    """End idle sessions and forget those beyond the retention time, for ever."""
    pause = min(LONGEST_SWEEP_SECONDS, service.config.session_idle_seconds / 4)
    while True:
        await asyncio.sleep(pause)
        try:
            await service.sessions.sweep()
            if service.config.retention_days is not None:
                forgotten = await service.sessions.forget_quiet(
                    service.clock() - service.config.retention_days * SECONDS_A_DAY
                )
                if forgotten:
                    logger.info("%d sessions were quiet for OPENCLAW_RETENTION_DAYS and are forgotten", forgotten)
            await service.sessions.erase()
        except Exception:
            service.metrics.ledger_failures.inc()
            logger.exception("idle or old sessions could not be swept; tried again in %.1f s", pause)


def _model(service: ChatService) -> dict[str, object]:
    return {
        "id": service.config.model_name,
        "object": "model",
        "created": 0,
        "owned_by": "openclaw",
        "max_model_len": service.config.context_length,
    }


def _json(value: object, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), headers=headers, media_type="application/json")


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _ledger_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LedgerError)
    logger.error("%s %s is refused: %s", request.method, request.scope["route"].path, error)
    return from_ledger(error).response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}").response()


async def _internal_error(request: Request, error: Exception) -> Response:
    """Answer for a defect; the server logs it with its traceback."""
    return ApiError(500, "the server failed on this request; its log says why", code="internal_error").response()
