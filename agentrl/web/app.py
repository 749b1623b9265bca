"""The routes of a lease service: a thin layer from JSON to `agentrl.service.LeaseService` and back.

A pool and a router have the same routes, so the same client works with both. The application owns nothing.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from prometheus_client import CollectorRegistry, generate_latest
from starlette.responses import PlainTextResponse, Response

from agentrl.protocol import Answer, EvaluateRequest, LeaseRequest, RenewRequest, ResetRequest, StepRequest
from agentrl.service import LeaseService
from agentrl.web.bodies import read
from agentrl.web.door import Door
from agentrl.web.errors import JSON, answer_errors

MOST_BODY_BYTES = 16 * 2**20


def create_app(
    service: LeaseService, registry: CollectorRegistry, *, key: str | None, most_body_bytes: int = MOST_BODY_BYTES
) -> FastAPI:
    """Return the application of a service.

    Args:
        service: answers the requests.
        registry: of its metrics.
        key: that clients must send; None admits every client that uses a loopback name.
        most_body_bytes: of a request.
    """
    app = FastAPI(title="agentrl", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Door, key=key)
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
