"""What every request passes before it reaches a route: request id, key, limits; and after it: counters and the access log.

Guarantees: every route but `OPEN_PATHS` needs a key, also one that is added later; a refused request's body is not read.
Every answer carries ``X-Request-Id``: the client's own when it sent a usable one, else the turn's, else a new one.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openclaw.gateway.access_log import SCOPE_NAME, RequestRecord, log_request, route_of
from openclaw.gateway.auth import Keyring
from openclaw.gateway.errors import ApiError
from openclaw.gateway.limits import BusyError, RateLimitError, RateLimits
from openclaw.gateway.metrics import GatewayMetrics

OPEN_PATHS = frozenset({"/healthz"})
LIMITED_METHODS = frozenset({"POST", "DELETE"})
"""Looking at models and metrics is not counted against a key's limits."""


class Guard:
    """ASGI middleware; holds no state of its own."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keyring: Keyring,
        limits: RateLimits,
        metrics: GatewayMetrics,
        on_refused: Callable[[str, int], None],
        log_contents: bool,
    ) -> None:
        """Wrap ``app``; ``on_refused`` is told path and status of what never reached it."""
        self._app = app
        self._keyring = keyring
        self._limits = limits
        self._metrics = metrics
        self._on_refused = on_refused
        self._log_contents = log_contents

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; anything but HTTP goes on as it is."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        record = scope[SCOPE_NAME] = RequestRecord.of(headers, scope["method"])

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                outgoing = MutableHeaders(scope=message)
                if record.stated_id is None:
                    record.id = outgoing.setdefault("x-request-id", record.id)
                else:
                    outgoing["x-request-id"] = record.stated_id
            await send(message)

        try:
            await self._admit(scope, headers, record, receive, answer)
        finally:
            self._count(record)
            log_request(record, route_of(scope), contents=self._log_contents)

    async def _admit(self, scope: Scope, headers: Headers, record: RequestRecord, receive: Receive, send: Send) -> None:
        """Let a request through to its route, or answer that it may not."""
        limited = False
        try:
            if scope["path"] not in OPEN_PATHS:
                record.key = self._keyring.check(headers)
                if scope["method"] in LIMITED_METHODS:
                    await self._limits.enter(record.key)
                    limited = True
        except ApiError as error:
            if isinstance(error, RateLimitError):
                self._metrics.rate_limited.labels(key=record.key, limit=error.limit).inc()
            elif not isinstance(error, BusyError):
                self._metrics.unauthorized.inc()
            self._on_refused(scope["path"], error.status)
            await error.response()(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if limited:
                await self._limits.leave(record.key, sum(record.tokens))

    def _count(self, record: RequestRecord) -> None:
        if record.key == "-":
            return
        self._metrics.key_requests.labels(key=record.key, code=str(record.status)).inc()
        prompt, generated = record.tokens
        if record.reply is not None:
            self._metrics.key_tokens.labels(key=record.key, kind="prompt").inc(prompt)
            self._metrics.key_tokens.labels(key=record.key, kind="generated").inc(generated)
