"""ASGI middleware in front of every route: page, key, body and limits before it, counters and access log after it.

Guarantees: no route serves a page of another origin (`openclaw.gateway.origin`). Every route except `OPEN_PATHS` needs
a key, including routes added later; the key of an episode opens `EPISODE_ROUTES` only. Without one, the body is not read.
A request counts as under way once its body has arrived (`openclaw.gateway.bodies`), so clients that send slowly take no
place from others. Every answer has ``X-Request-Id``: the client's own if usable, otherwise the turn's, otherwise a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openclaw.gateway.access_log import SCOPE_NAME, RequestRecord, log_request, route_of
from openclaw.gateway.auth import Client, Keyring
from openclaw.gateway.bodies import Bodies, take_body
from openclaw.gateway.completions import CHAT_PATH
from openclaw.gateway.errors import CLIENT_GONE, LIMIT_HEADER, ApiError, ClientGoneError, defect, stopping
from openclaw.gateway.limits import RateLimitError, RateLimits
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.origin import Doorway
from openclaw.gateway.under_way import Slots
from openclaw.privacy.secret_finder import secret_finder

OPEN_PATHS = frozenset({"/", "/healthz"})
MODELS_PATH = "/v1/models"
FEEDBACK_PATH = "/v1/feedback"
EPISODE_ROUTES = (("POST", CHAT_PATH), ("GET", MODELS_PATH))
"""Methods and paths, with what is below them, that an agent may use with the key of its episode."""
LIMITED_METHODS = frozenset({"POST", "DELETE"})
"""Requests for models and metrics do not count against a key's limits."""


class Guard:
    """The middleware; stateless."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        doorway: Doorway,
        keyring: Keyring,
        bodies: Bodies,
        limits: RateLimits,
        metrics: GatewayMetrics,
        on_refused: Callable[[str, int], None],
        log_contents: bool,
        slots: Slots,
    ) -> None:
        """Wrap ``app``; call ``on_refused`` with path and status of each refused request."""
        self._app = app
        self._doorway = doorway
        self._keyring = keyring
        self._bodies = bodies
        self._limits = limits
        self._metrics = metrics
        self._on_refused = on_refused
        self._log_contents = log_contents
        secret_finder()
        self._slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; pass the application's own events through, and refuse WebSockets."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        record = scope[SCOPE_NAME] = RequestRecord.of(headers, scope["method"])

        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                record.status = message["status"]
                outgoing = MutableHeaders(scope=message)
                if limit := outgoing.get(LIMIT_HEADER):
                    self._metrics.limit_hits.labels(limit=limit).inc()
                if record.stated_id is None:
                    record.id = outgoing.setdefault("x-request-id", record.id)
                else:
                    outgoing["x-request-id"] = record.stated_id
            await send(message)

        try:
            await self._admit(scope, headers, record, receive, answer)
        except asyncio.CancelledError:  # the time that the server gives its last requests is over
            if started:
                raise
            await stopping().response()(scope, receive, answer)
        except Exception:
            if not started:
                await defect().response()(scope, receive, answer)
            raise
        finally:
            self._count(record)
            log_request(record, route_of(scope), contents=self._log_contents)

    async def _admit(self, scope: Scope, headers: Headers, record: RequestRecord, receive: Receive, send: Send) -> None:
        """Pass a request on to its route, or answer with a refusal."""
        limited, slot = False, None
        try:
            try:
                self._doorway.check(headers)
                if scope["path"] not in OPEN_PATHS:
                    record.client = self._keyring.check(headers)
                    check_episode(record.client, scope["method"], scope["path"])
                    if scope["method"] == "POST":
                        await self._bodies.read(scope, headers, receive, record.key)
                    if scope["method"] in LIMITED_METHODS:
                        await self._limits.enter(record.key, feedback=scope["path"] == FEEDBACK_PATH)
                        limited = True
            except ClientGoneError:
                self._on_refused(scope["path"], CLIENT_GONE)
                return
            except ApiError as error:
                self._note(error, record)
                self._on_refused(scope["path"], error.status)
                await error.response()(scope, receive, send)
                return
            slot = self._slots.begin(record.id, record.key, scope["method"], scope["path"])
            await self._app(scope, receive, send)
        finally:
            if slot is not None:
                self._slots.end(slot)
            take_body(scope)
            if limited:
                await self._limits.leave(record.key, sum(record.tokens))

    def _note(self, error: ApiError, record: RequestRecord) -> None:
        """Count a refusal that has a metric of its own."""
        if isinstance(error, RateLimitError):
            self._metrics.rate_limited.labels(key=record.key, limit=error.limit).inc()
        elif error.status == 401:
            self._metrics.unauthorized.inc()

    def _count(self, record: RequestRecord) -> None:
        if record.client is None:
            return
        self._metrics.key_requests.labels(key=record.key, code=str(record.status)).inc()
        prompt, generated = record.tokens
        if record.reply is not None:
            self._metrics.key_tokens.labels(key=record.key, kind="prompt").inc(prompt)
            self._metrics.key_tokens.labels(key=record.key, kind="generated").inc(generated)


def check_episode(client: Client, method: str, path: str) -> None:
    """Raise ApiError, 403, if a client with the key of an episode asks for anything but the model."""
    if client.episode is None:
        return
    if not any(
        method == allowed and (path == route or path.startswith(f"{route}/")) for allowed, route in EPISODE_ROUTES
    ):
        raise ApiError(
            403,
            "the key of an episode may use POST /v1/chat/completions and GET /v1/models only; send the key that created it",
            code="episode_key",
        )
