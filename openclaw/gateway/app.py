"""The HTTP application: routes, keys, limits, and errors in OpenAI's shape.

Every request passes `openclaw.gateway.guard` first.
Routes: ``POST /v1/chat/completions``, ``POST /v1/feedback``, ``POST /v1/sessions/{id}/done``,
``DELETE /v1/sessions/{id}``, ``GET /v1/rollouts``, ``GET /v1/models``, ``GET /v1/models/{name}``, ``GET /healthz``
(open), ``GET /metrics``. Guarantees: a body beyond the limit is not read. The application owns nothing but the tasks
that sweep sessions and look at changed files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import Any

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from openclaw.gateway.access_log import key_name
from openclaw.gateway.auth import Keyring
from openclaw.gateway.chat import ChatService
from openclaw.gateway.completions import CHAT_PATH, ChatCompletions, count
from openclaw.gateway.errors import ApiError, defect, from_ledger
from openclaw.gateway.guard import Guard
from openclaw.gateway.limits import RateLimits
from openclaw.gateway.openapi import describe
from openclaw.gateway.reload import Reloader
from openclaw.gateway.wire import json_response, read_body
from openclaw.ledger.exceptions import LedgerError, UnknownRecordError

logger = logging.getLogger(__name__)

LONGEST_SWEEP_SECONDS = 30.0
SECONDS_A_DAY = 86400.0


class GuardedApp(FastAPI):
    """An application behind the guard, which also sees the answers to defects; ``reloader`` reads keys again."""

    reloader: Reloader
    guard: Callable[[ASGIApp], Guard]
    chat: ChatCompletions

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI description of all routes."""
        if self.openapi_schema is None:
            describe(super().openapi())
        return super().openapi()

    def build_middleware_stack(self) -> ASGIApp:
        """Put the guard before everything else; behind it a chat completion needs no routing."""
        routes = super().build_middleware_stack()

        async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
            chat = scope["type"] == "http" and scope["path"] == CHAT_PATH and scope["method"] == "POST"
            await (self.chat if chat else routes)(scope, receive, send)

        return self.guard(dispatch)


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
            count(service.metrics, status)

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

    app.chat = ChatCompletions(service)
    app.router.routes.append(Route(CHAT_PATH, app.chat, methods=["POST"]))

    @app.post("/v1/sessions/{session_id:path}/done")
    async def session_done(session_id: str) -> Response:
        """End a session without a further turn; sent again, it has no further effect."""
        if not await service.sessions.end(session_id):
            raise ApiError(404, f"there is no session {session_id!r}", code="session_not_found", param="session_id")
        return json_response({"id": session_id, "object": "session", "done": True})

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
        return json_response({"id": session_id, "object": "session", "deleted": True, **asdict(gone), "erased": erased})

    @app.post("/v1/feedback")
    async def feedback(request: Request) -> Response:
        """Take what a person says about a reply."""
        body = await read_body(request, config.max_body_bytes)
        return json_response(await service.feedback.take(body, key_name(request.scope)))

    @app.get("/v1/rollouts")
    async def rollouts(since: str = "0", after: str = "0") -> Response:
        """Hand recorded turns to a collector."""
        return json_response(await service.rollouts.page(since, after))

    @app.get("/v1/models")
    async def models() -> Response:
        """List the one model."""
        return json_response({"object": "list", "data": [_model(service)]})

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
        return json_response(_model(service))

    @app.get("/healthz")
    async def healthz() -> Response:
        """Say that requests are taken."""
        return json_response({"status": "ok", "model": service.config.model_name, "sessions": len(service.sessions)})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Show the numbers of the runtime."""
        service.metrics.sessions.set(len(service.sessions))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


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
    return defect().response()
