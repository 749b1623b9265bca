"""How a browser gets into the window (`openclaw.gateway.window`): a key, typed into a form, becomes a session of some hours.

A browser sends no ``Authorization`` header with a page, so the window takes a cookie besides. Guarantees:

* The cookie is random, unreadable for scripts (``HttpOnly``), sent by pages of this server only (``SameSite=Strict``), with
  TLS never in plain text (``Secure``), and to paths of the window only. It opens no route of the API: only this module reads it.
* A session ends when its time is over, when somebody logs out, when its key leaves the keys file, and with the process.
* The key of an episode begins none. Memory has digests only: of cookies and of keys.

Without keys everybody is let in, as everywhere else; the doorway (`openclaw.gateway.guard`) has refused foreign pages and
hosts before. Owned by the leading process, used from one event loop.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape

from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, Response

from openclaw.gateway.auth import Client, Keyring, key_digest, sent_key
from openclaw.gateway.errors import ApiError
from openclaw.gateway.window_views import BELOW, LOG_IN, STYLE

HOURS = 12
"""A session's length."""
MOST_SESSIONS = 64
"""Sessions of a key at a time; a further one ends its oldest, and nobody else's."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Of every answer of the window: no script but its own file, nothing from elsewhere, in nobody's frame and no cache.

The referrer policy is not ``no-referrer``, with which a browser sends a form with ``Origin: null``."""


@dataclass(frozen=True, slots=True)
class _Session:
    key: bytes
    until: float


class LogIns:
    """The sessions of one server."""

    def __init__(self, keyring: Keyring, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without sessions; ``port``: of the server, because a browser has one set of cookies for all ports of a host."""
        self._keyring = keyring
        self._clock = clock
        self._sessions: dict[bytes, _Session] = {}
        self._cookie = f"openclaw_window_{port}"

    @property
    def needed(self) -> bool:
        """Whether the server has keys."""
        return bool(self._keyring.names)

    def client(self, headers: Mapping[str, str], address: str = "") -> Client:
        """Return who asks for a page of the window from an address, by a key in the headers or else by the cookie.

        Raises:
            ApiError: 401 without either; 429 as `Keyring.check` does.
        """
        if not sent_key(headers):
            session = self._sessions.get(self._sent(headers))
            client = None if session is None or session.until <= self._clock() else self._keyring.find(session.key)
            if client is not None:
                return client
        return self._keyring.check(headers, address)

    def begin(self, key: str, response: Response, *, secure: bool, address: str = "") -> Client:
        """Begin a session with ``key``, give its cookie to ``response``, and return who it is; without keys begin none.

        Raises:
            ApiError: 401 for an unknown key, 403 for the key of an episode, 429 as `Keyring.check` does.
        """
        client = self._keyring.check({"x-api-key": key}, address)
        if client.episode is not None:
            raise ApiError(403, "the key of an episode opens no window; type the key of a person", code="episode_key")
        if not self.needed:
            return client
        now, digest = self._clock(), key_digest(key)
        self._sessions = {name: each for name, each in self._sessions.items() if each.until > now}
        own = [name for name, each in reversed(self._sessions.items()) if each.key == digest]
        for name in own[MOST_SESSIONS - 1 :]:
            del self._sessions[name]
        token = secrets.token_urlsafe(32)
        self._sessions[hashlib.sha256(token.encode()).digest()] = _Session(digest, now + HOURS * 3600)
        response.set_cookie(
            self._cookie,
            token,
            max_age=HOURS * 3600,
            path=BELOW,
            secure=secure,
            httponly=True,
            samesite="strict",
        )
        return client

    def end(self, headers: Mapping[str, str], response: Response) -> None:
        """End the session of a request, and let its browser forget the cookie."""
        self._sessions.pop(self._sent(headers), None)
        response.delete_cookie(self._cookie, path=BELOW, httponly=True, samesite="strict")

    def _sent(self, headers: Mapping[str, str]) -> bytes:
        cookies = cookie_parser(headers.get("cookie", ""))
        return hashlib.sha256(cookies.get(self._cookie, "").encode()).digest()


def plain_page(title: str, body: str, status: int, headers: Mapping[str, str] = HEADERS) -> Response:
    """Return a narrow page that needs no view; ``body``: HTML whose texts are escaped."""
    return HTMLResponse(
        f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="{STYLE}">
</head>
<body class="narrow">
<main>
<h1>OpenClaw-RL</h1>
{body}
</main>
</body>
</html>
""",
        status,
        headers,
    )


def log_in_page(problem: str = "", status: int = 401, headers: Mapping[str, str] = HEADERS) -> Response:
    """Return the form for the key; it tells nothing of anybody."""
    told = f'<p class="problem" role="alert">{escape(problem)}</p>' if problem else ""
    return plain_page(
        "OpenClaw-RL: log in",
        f"""<p>Type your key to see what the model learned from you. Your browser keeps it in no place; the page stays open for
{HOURS} hours, or until you log out.</p>
{told}
<form method="post" action="{LOG_IN}">
<label for="key">Key</label>
<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>
<button>Log in</button>
</form>
<p class="soft">Clients use the same key at <code>/v1</code>. Without a key of this server, ask its operator for one.</p>""",
        status,
        headers,
    )
