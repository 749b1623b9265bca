"""Who may enter: ASGI middleware in front of every route.

Guarantees: without the key nothing but ``/healthz`` and ``/readyz`` answers, and no body is read. The key is compared in
constant time. A server without a key answers to loopback names only, and every POST must be JSON by its content type, so
a web page in a browser of this machine cannot use it.
"""

from __future__ import annotations

import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrl.exceptions import AgentError, InvalidError
from agentrl.web.errors import JSON, response
from groundwork.network import is_loopback

OPEN_PATHS = frozenset({"/healthz", "/readyz"})


class Door:
    """The middleware; stateless."""

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
