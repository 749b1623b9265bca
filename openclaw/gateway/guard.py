"""ASGI middleware in front of every route: page, key, body and limits before it, counters and access log after it.

Guarantees: every route except `OPEN_PATHS` needs a key, including routes added later; below ``/window/`` a browser's log-in will
do (`openclaw.gateway.log_in`), and the pages of no other origin get anything. The key of an episode opens `EPISODE_ROUTES`
only. Without one, the body is not read. A request counts as under way once its body has arrived (`openclaw.gateway.limits`), so
clients that send slowly take no place from others. Every answer has ``X-Request-Id``: the client's own if usable, otherwise the
turn's, otherwise a new one.

A browser lets any page send requests to a loopback server, and a page whose name resolves to loopback even reads the
answers (DNS rebinding). Starlette's ``TrustedHostMiddleware`` cannot read an IPv6 ``Host`` and answers in plain text, so
`Doorway` checks both headers, with and without keys:

* A request of another origin's page gets 403, unless ``OPENCLAW_ALLOWED_ORIGINS`` lists the origin.
* Without a key, or with ``OPENCLAW_ALLOWED_HOSTS``, a ``Host`` other than loopback, ``HOST`` and those listed gets 403.
* A WebSocket upgrade gets 400.
* Only an allowed origin gets CORS headers, on every answer, and its preflight requests need no key.

The access log has one line per request: request id, name of the key, route, status, tokens, seconds, the turn's id and a
digest of the session id, but never contents. No text of a client gets in unescaped: a request id is accepted only if its
characters are harmless and it looks like no secret. Only ``OPENCLAW_LOG_CONTENTS=1`` logs the conversation itself. The
guard owns each request's `RequestRecord`; the handler finds it in the ASGI scope.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from groundwork.network import is_loopback
from openclaw.config.bounds import FEEDBACK_BODY, LESSON_BODY
from openclaw.config.runtime import RuntimeConfig, listed
from openclaw.gateway.auth import Client, Keyring, sender, sent_key
from openclaw.gateway.dialects import DIALECTS, EPISODE_DIALECTS
from openclaw.gateway.errors import (
    CLIENT_GONE,
    LIMIT_HEADER,
    REQUEST_SCOPE,
    ApiError,
    ClientGoneError,
    answer,
    bad_request,
    defect,
    is_below_messages,
    stopping,
)
from openclaw.gateway.limits import Bodies, RateLimitError, RateLimits, take_body
from openclaw.gateway.log_in import LogIns, log_in_page
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.reply import Reply
from openclaw.gateway.under_way import InFlightRegistry
from openclaw.gateway.window_views import BELOW, LOG_IN, SCRIPT, STYLE, WINDOW
from openclaw.privacy.secret_finder import looks_random, secret_finder

OPEN_PATHS = frozenset({"/", "/healthz", LOG_IN, SCRIPT, STYLE})
NOBODY = "-"
"""The name of a key that is unknown."""
MODELS_PATH = "/v1/models"
FEEDBACK_PATH = "/v1/feedback"
WINDOW_FEEDBACK = f"{WINDOW}/feedback"
FEEDBACK_PATHS = frozenset({FEEDBACK_PATH, WINDOW_FEEDBACK})
WINDOW_SAY, WINDOW_ASK_VERSION = f"{WINDOW}/say", f"{WINDOW}/ask_version"
REPLY_PATHS = frozenset({*(dialect.path for dialect in DIALECTS), WINDOW_SAY, WINDOW_ASK_VERSION})
"""That ask the model, so that they need what is left of a key's quota."""
EPISODE_ROUTES = (*(("POST", dialect.path) for dialect in EPISODE_DIALECTS), ("GET", MODELS_PATH))
"""Methods and paths, with what is below them, that an agent may use with the key of its episode."""
ALLOWED = ", ".join(map(" ".join, EPISODE_ROUTES))
LIMITED_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""Requests for models and metrics do not count against a key's limits."""
WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
READING_METHODS = frozenset({"GET", "HEAD"})


class RequestHeaders(Headers):
    """The headers of a request as a table; `Headers` reads the whole list at each of a score of look-ups."""

    def __init__(self, scope: Scope) -> None:
        """Read the headers of an ASGI request; of several lines of one name the first counts."""
        super().__init__(scope=scope)
        self._first = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(self.raw)}

    def __getitem__(self, key: str) -> str:
        """Return the value of the header ``key``, in any case."""
        return self._first[key.lower()]

    def __contains__(self, key: Any) -> bool:
        """Return whether the request has the header ``key``, in any case."""
        return key.lower() in self._first

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of the header ``key``, or ``default`` without it."""
        return self._first.get(key.lower(), default)


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
        slots: InFlightRegistry,
        log_ins: LogIns | None = None,
    ) -> None:
        """Wrap ``app``; call ``on_refused`` with path and status of each refused request; ``log_ins``: None without a window."""
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
        self._log_ins = log_ins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; pass the application's own events through, and refuse WebSockets."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = RequestHeaders(scope)
        record = scope[REQUEST_SCOPE] = RequestRecord.of(headers, scope["method"])

        started = False

        async def pass_on(message: Message) -> None:
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
                if is_below_messages(scope["path"]):
                    outgoing["request-id"] = record.id
            await send(message)

        try:
            await self._admit(scope, headers, record, receive, pass_on)
        except asyncio.CancelledError:  # the time that the server gives its last requests is over
            if started:
                raise
            await answer(stopping(), scope)(scope, receive, pass_on)
        except Exception:
            if not started:
                await answer(defect(), scope)(scope, receive, pass_on)
            raise
        finally:
            self._count(record)
            log_request(record, route_of(scope), contents=self._log_contents)

    async def _admit(self, scope: Scope, headers: Headers, record: RequestRecord, receive: Receive, send: Send) -> None:
        """Pass a request on to its route, or answer with a refusal."""
        limited, slot = False, None
        try:
            try:
                path = scope["path"]
                self._doorway.check(headers)
                if path.startswith(BELOW):
                    self._doorway.check_own(headers, changes=scope["method"] not in READING_METHODS)
                address = sender(scope)
                if path == LOG_IN and scope["method"] in WITH_BODY:  # of strangers, each of whom has room of its own
                    await self._bodies.read(scope, headers, receive, f"{record.key}{address}", LESSON_BODY)
                if path not in OPEN_PATHS:
                    record.client = self._client(path, headers, address)
                    check_episode(record.client, scope["method"], path)
                    if scope["method"] in WITH_BODY:
                        form = FEEDBACK_BODY if path.startswith(BELOW) else None
                        await self._bodies.read(scope, headers, receive, record.key, form)
                    if scope["method"] in LIMITED_METHODS:
                        await self._limits.enter(record.key, feedback=path in FEEDBACK_PATHS, reply=path in REPLY_PATHS)
                        limited = True
            except ClientGoneError:
                self._on_refused(scope["path"], CLIENT_GONE)
                return
            except ApiError as error:
                note_refusal(self._metrics, error, record.key)
                self._on_refused(scope["path"], error.status)
                asks = (
                    error.status == 401 and scope["path"].startswith(BELOW) and "text/html" in headers.get("accept", "")
                )
                await (log_in_page() if asks else answer(error, scope))(scope, receive, send)
                return
            slot = self._slots.begin(record.id, record.key, scope["method"], scope["path"])
            await self._app(scope, receive, send)
        finally:
            if slot is not None:
                self._slots.end(slot)
            take_body(scope)
            if limited:
                await self._limits.leave(record.key, sum(record.tokens))

    def _client(self, path: str, headers: Headers, address: str) -> Client:
        """Return who sends a request; the window knows its browsers besides."""
        if self._log_ins is None or not path.startswith(BELOW):
            return self._keyring.check(headers, address)
        return self._log_ins.client(headers, address)

    def _count(self, record: RequestRecord) -> None:
        if record.client is None:
            return
        self._metrics.key_requests.labels(key=record.key, code=str(record.status)).inc()
        prompt, generated = record.tokens
        if record.replies:
            self._metrics.key_tokens.labels(key=record.key, kind="prompt").inc(prompt)
            self._metrics.key_tokens.labels(key=record.key, kind="generated").inc(generated)


def note_refusal(metrics: GatewayMetrics, error: ApiError, key: str = NOBODY) -> None:
    """Count a refusal that has a metric of its own; ``key``: the name of the key."""
    if isinstance(error, RateLimitError):
        metrics.rate_limited.labels(key=key, limit=error.limit).inc()
    elif error.status == 401:
        metrics.unauthorized.inc()


def check_episode(client: Client, method: str, path: str) -> None:
    """Raise ApiError, 403, if a client with the key of an episode asks for anything but the model."""
    if client.episode is None:
        return
    if not any(
        method == allowed and (path == route or path.startswith(f"{route}/")) for allowed, route in EPISODE_ROUTES
    ):
        raise ApiError(
            403,
            f"the key of an episode may use {ALLOWED} only; send the key that created it",
            code="episode_key",
        )


logger = logging.getLogger(__name__)

OWN_PAGES = frozenset({"same-origin", "none"})
"""Values of ``Sec-Fetch-Site`` of our own pages and of what a person typed into the address bar."""
READ = (b"host", b"origin", b"sec-fetch-site", b"upgrade")
EXPOSED = ("x-request-id", "x-weight-version", "x-turn-type", "x-openclaw-lessons", "retry-after", LIMIT_HEADER)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
SHOWN = 100
"""Characters of a client's header in messages and logs."""
NOTED = 8
"""Different origins that are logged; any page can send more."""


class Doorway:
    """The rules of one server."""

    def __init__(self, config: RuntimeConfig) -> None:
        """Read the rules of a configuration."""
        keyless = not config.api_key and not config.api_keys_file
        self._any_host = not keyless and not config.allowed_hosts
        self._hosts = frozenset({config.host.lower(), *listed(config.allowed_hosts)})
        self._origins = frozenset(listed(config.allowed_origins))
        self._noted: set[str] = set()

    def with_cors(self, app: ASGIApp) -> ASGIApp:
        """Return ``app`` behind answers to the preflight requests of allowed origins, or ``app`` if there are none."""
        if not self._origins:
            return app
        cors = CORSMiddleware(
            app,
            allow_origins=self._origins,
            allow_methods=METHODS,
            allow_headers=["*"],
            allow_private_network=True,
            expose_headers=EXPOSED,
        )

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            allowed = scope["type"] == "http" and self._allowed(Headers(scope=scope).getlist("origin"))
            await (cors if allowed else app)(scope, receive, send)

        return serve

    def check(self, headers: Headers) -> None:
        """Raise ApiError for a request that no page and no name of this server may send."""
        results: dict[bytes, list[str]] = {name: [] for name in READ}
        for name, value in headers.raw:
            if name in results:
                results[name].append(value.decode("latin-1"))
        hosts = results[b"host"]
        if not self._any_host and (len(hosts) != 1 or not self._is_own(hosts[0])):
            name = host_name(hosts[0]) if hosts else ""
            raise ApiError(
                403,
                f"this server does not answer to the host {name[:SHOWN]!r}; use its loopback address, or add the name "
                "to OPENCLAW_ALLOWED_HOSTS",
                code="host_not_allowed",
            )
        self._check_page(results[b"origin"], results[b"sec-fetch-site"], hosts)
        if any("websocket" in value.lower() for value in results[b"upgrade"]):
            raise bad_request("this server has no WebSockets; send a plain HTTP request", code="unsupported_upgrade")

    def check_own(self, headers: Headers, *, changes: bool) -> None:
        """Raise ApiError unless a request of the window is of this server's own page, whatever other origins are allowed.

        What ``changes`` something has to prove it: the browser says so, or the request carries a key, which no page of
        another origin can make a browser send.
        """
        origins, sites = headers.getlist("origin"), headers.getlist("sec-fetch-site")
        own = headers.get("host", "").lower()
        if any(origin.lower().partition("://")[2] != own for origin in origins) or any(
            site.lower() not in OWN_PAGES for site in sites
        ):
            raise ApiError(403, "pages of another origin do not reach the window", code="origin_not_allowed")
        proven = origins or any(site.lower() == "same-origin" for site in sites) or sent_key(headers)
        if changes and not proven:
            raise ApiError(
                403, "only a page of this server changes something here; programs use /v1", code="origin_not_allowed"
            )

    def _is_own(self, host: str) -> bool:
        name = host_name(host)
        return name in self._hosts or is_loopback(name) or name.endswith(".localhost")

    def _allowed(self, origins: list[str]) -> bool:
        return len(origins) == 1 and origins[0].lower() in self._origins

    def _check_page(self, origins: list[str], sites: list[str], hosts: list[str]) -> None:
        if not (origins or sites) or self._allowed(origins):
            return
        own = hosts[0].lower() if hosts else ""
        foreign = [origin for origin in origins if not own or origin.lower().partition("://")[2] != own]
        if foreign or any(site.lower() not in OWN_PAGES for site in sites):
            page = (foreign or ["another site"])[0][:SHOWN]
            self._note(page)
            raise ApiError(
                403,
                f"pages of {page!r} may not use this server; to allow an origin, add it to OPENCLAW_ALLOWED_ORIGINS",
                code="origin_not_allowed",
            )

    def _note(self, page: str) -> None:
        if page not in self._noted and len(self._noted) < NOTED:
            self._noted.add(page)
            logger.warning("refused a request of a page of %r; OPENCLAW_ALLOWED_ORIGINS lists allowed origins", page)


def host_name(host: str) -> str:
    """Return the name or address of a ``Host`` header, without port, brackets and final dot; as it is if malformed."""
    host = host.strip().lower()
    if host.startswith("["):
        address, closed, port = host[1:].partition("]")
        return address if closed and (not port or _is_port(port)) else host
    name, colon, port = host.partition(":")
    if colon and not _is_port(f":{port}"):
        return host
    return name.removesuffix(".")


def _is_port(text: str) -> bool:
    return text[0] == ":" and text[1:].isascii() and text[1:].isdigit()


access_logger = logging.getLogger("openclaw.access")

SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
LONG_WORD = re.compile(r"[A-Za-z0-9/+=]{32,}")
"""In an id a secret if it is random and has both cases; trace ids are hexadecimal digits or UUIDs."""
QUIET_ROUTES = ("/healthz", "/metrics", "/v1/turns/{response_id:path}")
"""Routes that clients poll."""


@dataclass
class RequestRecord:
    """What the access log knows about one request.

    Attributes:
        stated_id: the client's own request id, if it is usable.
        id: the request id in the answer.
        client: who sends it; None until the key is known.
        method: HTTP method.
        status: of the answer; 499 if the client left before it.
        replies: the replies of completions that have begun; a comparison has two.
        started: monotonic clock, seconds.
    """

    stated_id: str | None
    id: str
    method: str
    client: Client | None = None
    status: int = 499
    replies: list[Reply] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @staticmethod
    def of(headers: Mapping[str, str], method: str) -> RequestRecord:
        """Return the record of a new request."""
        stated = headers.get("x-request-id", "")
        usable = SANE_REQUEST_ID.fullmatch(stated) and not has_secret(stated) and stated != sent_key(headers)
        id_ = stated if usable else f"req-{uuid.uuid4().hex}"
        return RequestRecord(stated if usable else None, id_, method)

    @property
    def key(self) -> str:
        """Name of the key, ``-`` until it is known."""
        return NOBODY if self.client is None else self.client.name

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of the prompts and of all choices of the replies."""
        counts = [reply.tokens for reply in self.replies]
        return sum(prompt for prompt, _ in counts), sum(generated for _, generated in counts)

    def line(self, route: str) -> str:
        """Return the log line."""
        prompt, generated = self.tokens
        words = [
            f"request={self.id} key={self.key} {self.method} {route} status={self.status}",
            f"seconds={time.monotonic() - self.started:.3f}",
        ]
        if self.replies:
            words.append(f"prompt_tokens={prompt} generated_tokens={generated}")
            words += [reply.log_words for reply in self.replies]
        return " ".join(words)


def has_secret(request_id: str) -> bool:
    """Return whether a request id of sane length looks like a key, token or password."""
    words = LONG_WORD.findall(request_id)
    if any(not word.islower() and not word.isupper() and looks_random(word) for word in words):
        return True
    return next(secret_finder()(request_id), None) is not None


def note_reply(scope: MutableMapping[str, Any], reply: Reply) -> None:
    """Add the reply to the request's record; no-op without a guard."""
    if REQUEST_SCOPE in scope:
        scope[REQUEST_SCOPE].replies.append(reply)


def client_of(scope: Mapping[str, Any]) -> Client:
    """Return who sends a request that the guard admitted."""
    client = scope[REQUEST_SCOPE].client
    assert client is not None, "the guard admits no request to this route without a key"
    return client


def route_of(scope: Mapping[str, Any]) -> str:
    """Return the pattern of the route that answered, ``-`` if none did."""
    return getattr(scope.get("route"), "path", "-")


def log_request(record: RequestRecord, route: str, *, contents: bool) -> None:
    """Log a finished request."""
    level = logging.DEBUG if route in QUIET_ROUTES and record.status == 200 else logging.INFO
    if access_logger.isEnabledFor(level):
        access_logger.log(level, "%s", record.line(route))
    for reply in record.replies if contents else ():
        access_logger.info("request=%s contents=%s", record.id, reply.contents())
