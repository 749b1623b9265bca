"""The routes other than chat completions.

``POST /v1/sessions/{id}/done``, ``DELETE /v1/sessions/{id}``, ``POST /v1/feedback``, ``GET /v1/turns/{id}``,
``GET /v1/rollouts``; ``GET /v1/models``, ``GET /v1/models/{name}``; ``GET /``, ``GET /healthz``, ``GET /metrics``.
Guarantees: a client acts only on sessions and turns that it reaches (`openclaw.gateway.auth`); any other id gets the 404 of an unknown
one. Stateless.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import asdict

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from groundwork.paused import paused
from openclaw.config.bounds import FEEDBACK_BODY
from openclaw.gateway.access_log import client_of
from openclaw.gateway.auth import Keyring
from openclaw.gateway.bodies import take_body, too_large
from openclaw.gateway.chat import ChatService
from openclaw.gateway.client_connection import json_response
from openclaw.gateway.errors import ApiError
from openclaw.gateway.front_page import front_page
from openclaw.ledger.exceptions import LedgerFullError, UnknownRecordError
from openclaw.ledger.sessions import Forgotten

logger = logging.getLogger(__name__)


def add_session_routes(app: FastAPI, service: ChatService) -> None:
    """Add the routes for sessions, feedback, outcomes and collectors."""

    @app.post("/v1/sessions/{session_id:path}/done")
    async def session_done(session_id: str, request: Request) -> Response:
        """End a session without a further turn; a no-op when repeated."""
        for stored in client_of(request.scope).meant(session_id):
            if await service.sessions.end(stored):
                return json_response({"id": session_id, "object": "session", "done": True})
        raise _unknown_session(session_id)

    @app.delete("/v1/sessions/{session_id:path}")
    async def forget_session(session_id: str, request: Request) -> Response:
        """Delete all data of a session; ``erased`` is false while another reader keeps old bytes on disk."""
        for stored in client_of(request.scope).meant(session_id):
            with suppress(UnknownRecordError):
                gone = await _forget(service, stored)
                erased = await service.sessions.erase()
                told = {"id": session_id, "object": "session", "deleted": True}
                return json_response({**told, **asdict(gone), "erased": erased})
        raise _unknown_session(session_id)

    @app.post("/v1/feedback")
    async def feedback(request: Request) -> Response:
        """Record a person's feedback on a reply."""
        body = take_body(request.scope)
        if len(body) > FEEDBACK_BODY.most:
            raise too_large(FEEDBACK_BODY.most, limit=FEEDBACK_BODY.name)
        return json_response(await service.feedback.take(body, client_of(request.scope)))

    @app.get("/v1/turns/{response_id:path}")
    async def turn(response_id: str, request: Request) -> Response:
        """Return what became of a reply: state, verdict, and the training step that uses it."""
        return json_response(await service.outcomes.tell(response_id, client_of(request.scope)))

    @app.get("/v1/rollouts")
    async def rollouts(request: Request, since: str = "0", after: str = "0") -> Response:
        """Return the client's recorded turns, or those of all owners to an admin key."""
        return json_response(await service.rollouts.page(since, after, client_of(request.scope)))


def add_model_routes(app: FastAPI, service: ChatService) -> None:
    """Add the routes that describe the one model."""

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


def add_status_routes(app: FastAPI, service: ChatService, registry: CollectorRegistry, keyring: Keyring) -> None:
    """Add the routes for monitoring; ``registry`` has the metrics, which count by key."""

    @app.get("/")
    async def front(request: Request) -> Response:
        """Say what this server is: a page for a browser, otherwise JSON."""
        return front_page(
            request.headers, str(request.base_url), service.config.model_name, needs_key=bool(keyring.names)
        )

    @app.get("/healthz")
    async def healthz() -> Response:
        """Report that the gateway takes requests, how long some waited for an engine, and what holds training back."""
        config = service.config
        told = {"status": "ok", "model": config.model_name, "sessions": len(service.sessions)}
        told["engine_away_seconds"] = round(service.engine.away.seconds, 3)
        note = paused(config.run_dir) if config.run_dir else None
        offer = await service.outcomes.offered(config.gate_offer) if config.run_dir else None
        told |= {} if note is None else {"training": str(note)}
        told |= {} if offer is None else {"gate": f"{offer}, type: openclaw-rl accept RUN"}
        return json_response(told)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Return the runtime's metrics; if the server has several keys, only to an admin key."""
        if keyring.shared and not client_of(request.scope).admin:
            raise ApiError(403, "the metrics count by key; read them with an admin key", code="admin_key_required")
        service.metrics.sessions.set(len(service.sessions))
        run_dir = service.config.run_dir
        service.metrics.training_paused.set(bool(run_dir and paused(run_dir)))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


async def _forget(service: ChatService, stored_id: str) -> Forgotten:
    try:
        return await service.sessions.forget(stored_id)
    except LedgerFullError as error:
        logger.error("a session could not be deleted: %s", error)
        raise ApiError(
            507,
            "the server's disk is full, so the session is not deleted; ask its operator to free some space, "
            "then send the request again",
            code="disk_full",
        ) from error


def _unknown_session(session_id: str) -> ApiError:
    return ApiError(404, f"there is no session {session_id!r}", code="session_not_found", param="session_id")


def _model(service: ChatService) -> dict[str, object]:
    return {
        "id": service.config.model_name,
        "object": "model",
        "created": 0,
        "owned_by": "openclaw",
        "max_model_len": service.config.context_length,
    }
