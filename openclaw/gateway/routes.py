"""The routes other than chat completions and episodes.

``POST /v1/messages/count_tokens``, ``POST /v1/sessions/{id}/done``, ``DELETE /v1/sessions/{id}``, ``POST /v1/feedback``, ``GET /v1/turns/{id}``,
``GET /v1/rollouts``, ``GET /v1/steps/last``; ``GET /v1/models``, ``GET /v1/models/{name}``; ``GET /``, ``GET /healthz``, ``GET /metrics``.

Guarantees: a client acts only on sessions and turns that it reaches (`openclaw.gateway.auth`); any other id gets the 404
of an unknown one. The page for who opens the address in a browser is one file without scripts, links to other hosts, or
anything of a conversation, and tells nothing that `/healthz` does not tell without a key. Stateless.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from html import escape
from typing import Any

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, RedirectResponse

from groundwork.paused import paused, paused_people, waiting
from openclaw.gateway.auth import Client, Keyring, sender, sent_key
from openclaw.gateway.chat import ChatService
from openclaw.gateway.dialects import COUNT_TOKENS
from openclaw.gateway.earlier import MARK
from openclaw.gateway.errors import ApiError, disk_full
from openclaw.gateway.guard import client_of
from openclaw.gateway.limits import take_body
from openclaw.gateway.stream import json_response
from openclaw.gateway.usage import UsageDesk
from openclaw.gateway.window_views import WINDOW
from openclaw.ledger.exceptions import LedgerFullError, UnknownRecordError
from openclaw.ledger.sessions import Forgotten
from openclaw.owners import episode_of

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
        return json_response(await forget_meant(service, session_id, client_of(request.scope)))

    @app.post("/v1/feedback")
    async def feedback(request: Request) -> Response:
        """Record a person's feedback on a reply."""
        return json_response(await service.turns.take_feedback(take_body(request.scope), client_of(request.scope)))

    @app.get("/v1/turns/{response_id:path}")
    async def turn(response_id: str, request: Request) -> Response:
        """Return what became of a reply: state, verdict, and the training step that uses it."""
        return json_response(await service.turns.outcome(response_id, client_of(request.scope)))

    @app.post(COUNT_TOKENS.path)
    async def count_tokens(request: Request) -> Response:
        """Return the length of the prompt that the Messages API would give a conversation."""
        question = await service.question(COUNT_TOKENS, take_body(request.scope))
        count = await service.count_tokens(question, request.headers, client_of(request.scope))
        return json_response({"input_tokens": count})

    @app.get("/v1/rollouts")
    async def rollouts(request: Request, since: str = "0", after: str = "0") -> Response:
        """Return the client's recorded turns, or those of all owners to an admin key."""
        return json_response(await service.turns.rollouts(since, after, client_of(request.scope)))


def add_model_routes(app: FastAPI, service: ChatService) -> None:
    """Add the routes that describe the one model and its kept versions."""

    async def names(request: Request) -> list[str]:
        own, owner = service.config.model_name, client_of(request.scope).owner
        kept = [] if service.earlier is None or episode_of(owner) is not None else await service.earlier.kept(owner)
        return [own, *(f"{own}{MARK}{version}" for version in kept)]

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        """List the model, and the versions of it that the client may name."""
        return json_response({"object": "list", "data": [_model(service, name) for name in await names(request)]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str, request: Request) -> Response:
        """Describe the model, or a version of it."""
        if name != service.config.model_name and name not in await names(request):
            raise ApiError(
                404,
                f"there is no model {name!r}; use {service.config.model_name!r}",
                code="model_not_found",
                param="model",
            )
        return json_response(_model(service, name))


def add_status_routes(
    app: FastAPI,
    service: ChatService,
    registry: CollectorRegistry,
    keyring: Keyring,
    meters: UsageDesk,
    workers: Callable[[], int] | None = None,
    *,
    has_window: bool = False,
) -> None:
    """Add the routes for monitoring.

    Args:
        app: gets them.
        service: which the routes tell of.
        registry: has the metrics, which count by key.
        keyring: of the clients.
        meters: of tokens.
        workers: counts the workers alive; None: there are none.
        has_window: whether a browser is sent to the window.
    """

    @app.get("/")
    async def front(request: Request) -> Response:
        """Say what this server is: the window for a browser, otherwise JSON."""
        if has_window and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse(f"{WINDOW}/", headers=HEADERS)
        return front_page(
            request.headers, str(request.base_url), service.config.model_name, needs_key=bool(keyring.names)
        )

    def may_count(request: Request) -> bool:
        """Return whether who asks may learn numbers of all owners; a wrong key is counted, and is no key."""
        if not keyring.shared:
            return True
        try:
            return bool(sent_key(request.headers)) and keyring.check(request.headers, sender(request.scope)).admin
        except ApiError:
            return False

    @app.get("/healthz")
    async def healthz(request: Request) -> Response:
        """Report that the gateway takes requests, how long some waited for an engine, and what holds training back.

        If the server has several keys, the numbers of sessions, people and batches, and that people talk, are for an admin key.
        """
        config = service.config
        body: dict[str, Any] = {"status": "ok", "model": config.model_name}
        body["engine_away_seconds"] = round(service.engine.away.seconds, 3)
        body |= {} if workers is None else {"workers": workers()}
        run_dir = config.run_dir
        if not may_count(request):
            held = paused(run_dir) if run_dir else None
            why = None if held is None else f"training is paused: {held.why}"
            note = (why or waiting(run_dir, to_anybody=True)) if run_dir else None
            return json_response(body | ({} if note is None else {"training": note}))
        body["sessions"] = len(service.sessions)
        note = (paused(run_dir) or waiting(run_dir)) if run_dir else None
        held = len(paused_people(run_dir)) if run_dir else 0
        offer = await service.turns.offered(config.gate_offer) if config.run_dir else None
        body |= {} if note is None else {"training": str(note)}
        body |= {"people_paused": held} if held else {}
        body |= {} if offer is None else {"gate": f"{offer}, type: openclaw-rl accept RUN"}
        certifies = config.run_dir and config.gate_certificate
        last = await service.turns.certified(None) if certifies else None
        refused = await service.turns.people_refused() if certifies else 0
        body |= {"people_refused": refused} if refused else {}
        causes = last.certificate["causes"] if last is not None and last.certificate is not None else []
        if last is not None and causes:
            body["certificate"] = f"the update of batch {last.rollout_id} does not serve: {'; '.join(causes)}"
        return json_response(body)

    @app.get("/v1/steps/last")
    async def last_step(request: Request) -> Response:
        """Return the certificate of the newest update; if the server has several keys, only to an admin key."""
        if keyring.shared and not client_of(request.scope).admin:
            raise ApiError(403, "a step learns from all owners; read it with an admin key", code="admin_key_required")
        last = await service.turns.certified()
        if last is None:
            raise ApiError(404, "no update has a certificate yet", code="step_not_found")
        step = {"rollout_id": last.rollout_id, "weight_version": last.weight_version, "accepted": last.kind == "step"}
        return json_response({"object": "step", **step, "decided_at": last.decided_at, "certificate": last.certificate})

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Return the runtime's metrics; if the server has several keys, only to an admin key."""
        if keyring.shared and not client_of(request.scope).admin:
            raise ApiError(403, "the metrics count by key; read them with an admin key", code="admin_key_required")
        service.metrics.sessions.set(len(service.sessions))
        await meters.count(service.metrics)
        run_dir = service.config.run_dir
        service.metrics.training_paused.set(bool(run_dir and paused(run_dir)))
        service.metrics.people_paused.set(len(paused_people(run_dir)) if run_dir else 0)
        service.metrics.training_waits.set(bool(run_dir and waiting(run_dir)))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


async def forget_meant(service: ChatService, session_id: str, client: Client) -> dict[str, Any]:
    """Delete all data of the session that a client means by an id; ``erased`` is false while another reader keeps old bytes.

    Raises:
        ApiError: 404 for a session that is unknown or not the client's, 507 if the disk is full.
    """
    for stored in client.meant(session_id):
        with suppress(UnknownRecordError):
            gone = await _forget(service, stored)
            erased = await service.sessions.erase()
            return {"id": session_id, "object": "session", "deleted": True, **asdict(gone), "erased": erased}
    raise _unknown_session(session_id)


async def _forget(service: ChatService, stored_id: str) -> Forgotten:
    try:
        return await service.sessions.forget(stored_id)
    except LedgerFullError as error:
        raise disk_full(error) from error


def _unknown_session(session_id: str) -> ApiError:
    return ApiError(404, f"there is no session {session_id!r}", code="session_not_found", param="session_id")


def _model(service: ChatService, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "openclaw",
        "max_model_len": service.config.context_length,
    }


TITLE = "OpenClaw-RL"
ABOUT = "A model that learns from its conversations. This address serves it with the APIs of OpenAI and Anthropic."
ROUTES = {
    "POST /v1/chat/completions": "ask the model",
    "POST /v1/responses": "ask it in OpenAI's Responses API",
    "POST /v1/messages": "ask it with Anthropic's Messages API",
    "POST /v1/completions": "let it continue a text, which it never learns from",
    "GET /v1/models": "its name and context length",
    "POST /v1/feedback": "a thumb or a comment on a reply",
    "GET /v1/turns/ID": "what became of a reply",
    "GET /v1/usage": "the tokens that your turns took",
    "GET /healthz": "whether the server answers",
    "GET /openapi.json": "all routes",
}
DOCUMENTS = "instructions/README.md of the repository"
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:3rem auto;padding:0 1rem}"
    "pre{overflow-x:auto;padding:1rem;border:1px solid}td{padding-right:1rem;vertical-align:top}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def front_page(headers: Headers, base_url: str, model: str, *, needs_key: bool) -> Response:
    """Return the answer to ``GET /``: a page for a browser, otherwise JSON.

    Args:
        headers: of the request.
        base_url: under which the client reached the server.
        model: its name.
        needs_key: whether requests need one.
    """
    url = f"{base_url.rstrip('/')}/v1"
    if "text/html" not in headers.get("accept", ""):
        body = {"name": TITLE, "about": ABOUT, "status": "ok", "model": model, "base_url": url}
        response = json_response({**body, "needs_key": needs_key, "routes": ROUTES, "documents": DOCUMENTS})
        response.headers.update(HEADERS)
        return response
    return HTMLResponse(_page(url, model, needs_key), headers=HEADERS)


def _page(url: str, model: str, needs_key: bool) -> str:
    key = ' -H "Authorization: Bearer $OPENCLAW_API_KEY"' if needs_key else ""
    curl = (
        f"curl {url}/chat/completions -H 'Content-Type: application/json'{key} \\\n"
        """  -d '{"messages": [{"role": "user", "content": "Hello"}]}'"""
    )
    rows = "".join(
        f"<tr><td><code>{escape(route)}</code></td><td>{escape(what)}</td></tr>" for route, what in ROUTES.items()
    )
    asks = "Requests need a key." if needs_key else "Requests need no key."
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>{TITLE}</title>
<style>{STYLE}</style>
<h1>{TITLE}</h1>
<p>{ABOUT}</p>
<p>It serves now. The model is <b>{escape(model)}</b>. {asks}</p>
<p>Talk to it in a terminal:</p>
<pre>openclaw-rl chat --base-url {escape(url)}</pre>
<p>Or point a client at <code>{escape(url)}</code>:</p>
<pre>{escape(curl)}</pre>
<table>{rows}</table>
<p>See what it learned with <code>openclaw-rl report RUN</code>. The documents begin at {DOCUMENTS}.</p>
</html>
"""
