"""The routes other than chat completions.

``POST /v1/sessions/{id}/done``, ``DELETE /v1/sessions/{id}``, ``POST /v1/feedback``, ``GET /v1/turns/{id}``,
``GET /v1/rollouts``; ``GET /v1/models``, ``GET /v1/models/{name}``; ``GET /healthz``, ``GET /metrics``. Guarantees:
bodies over the limit are not read. Stateless.
"""

from __future__ import annotations

from dataclasses import asdict

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from openclaw.config.bounds import FEEDBACK_BODY
from openclaw.gateway.access_log import key_name
from openclaw.gateway.chat import ChatService
from openclaw.gateway.client_connection import json_response, read_body
from openclaw.gateway.errors import ApiError
from openclaw.ledger.exceptions import UnknownRecordError


def add_session_routes(app: FastAPI, service: ChatService) -> None:
    """Add the routes for sessions, feedback, outcomes and collectors."""

    @app.post("/v1/sessions/{session_id:path}/done")
    async def session_done(session_id: str) -> Response:
        """End a session without a further turn; a no-op when repeated."""
        if not await service.sessions.end(session_id):
            raise ApiError(404, f"there is no session {session_id!r}", code="session_not_found", param="session_id")
        return json_response({"id": session_id, "object": "session", "done": True})

    @app.delete("/v1/sessions/{session_id:path}")
    async def forget_session(session_id: str) -> Response:
        """Delete all data of a session; ``erased`` is false while another reader keeps old bytes on disk."""
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
        """Record a person's feedback on a reply."""
        body = await read_body(request, min(service.config.max_body_bytes, FEEDBACK_BODY.most))
        return json_response(await service.feedback.take(body, key_name(request.scope)))

    @app.get("/v1/turns/{response_id:path}")
    async def turn(response_id: str) -> Response:
        """Return what became of a reply: state, verdict, and the training step that uses it."""
        return json_response(await service.outcomes.tell(response_id))

    @app.get("/v1/rollouts")
    async def rollouts(since: str = "0", after: str = "0") -> Response:
        """Return recorded turns to a collector."""
        return json_response(await service.rollouts.page(since, after))


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


def add_status_routes(app: FastAPI, service: ChatService, registry: CollectorRegistry) -> None:
    """Add the routes for monitoring; ``registry`` has the metrics."""

    @app.get("/healthz")
    async def healthz() -> Response:
        """Report that the gateway takes requests."""
        return json_response({"status": "ok", "model": service.config.model_name, "sessions": len(service.sessions)})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return the runtime's metrics."""
        service.metrics.sessions.set(len(service.sessions))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def _model(service: ChatService) -> dict[str, object]:
    return {
        "id": service.config.model_name,
        "object": "model",
        "created": 0,
        "owned_by": "openclaw",
        "max_model_len": service.config.context_length,
    }
