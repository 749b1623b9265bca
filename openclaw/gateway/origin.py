"""Which names the gateway answers to, and which web pages may use it.

A browser lets any page send requests to a loopback server, and a page whose name resolves to loopback even reads the
answers (DNS rebinding). Starlette's ``TrustedHostMiddleware`` cannot read an IPv6 ``Host`` and answers in plain text, so
`Doorway` checks both headers.

Guarantees, with and without keys:

* A request of another origin's page gets 403, unless ``OPENCLAW_ALLOWED_ORIGINS`` lists the origin.
* Without a key, or with ``OPENCLAW_ALLOWED_HOSTS``, a ``Host`` other than loopback, ``HOST`` and those listed gets 403.
* A WebSocket upgrade gets 400.
* Only an allowed origin gets CORS headers, on every answer, and its preflight requests need no key.
"""

from __future__ import annotations

import logging

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from groundwork.network import is_loopback
from openclaw.config.runtime import RuntimeConfig, listed
from openclaw.gateway.errors import LIMIT_HEADER, ApiError, bad_request

logger = logging.getLogger(__name__)

OWN_PAGES = frozenset({"same-origin", "none"})
"""Values of ``Sec-Fetch-Site`` of our own pages and of what a person typed into the address bar."""
READ = (b"host", b"origin", b"sec-fetch-site", b"upgrade")
EXPOSED = ("x-request-id", "x-weight-version", "x-turn-type", "retry-after", LIMIT_HEADER)
METHODS = ("GET", "POST", "DELETE")
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
        found: dict[bytes, list[str]] = {name: [] for name in READ}
        for name, value in headers.raw:
            if name in found:
                found[name].append(value.decode("latin-1"))
        hosts = found[b"host"]
        if not self._any_host and (len(hosts) != 1 or not self._is_own(hosts[0])):
            name = host_name(hosts[0]) if hosts else ""
            raise ApiError(
                403,
                f"this server does not answer to the host {name[:SHOWN]!r}; use its loopback address, or add the name "
                "to OPENCLAW_ALLOWED_HOSTS",
                code="host_not_allowed",
            )
        self._check_page(found[b"origin"], found[b"sec-fetch-site"], hosts)
        if any("websocket" in value.lower() for value in found[b"upgrade"]):
            raise bad_request("this server has no WebSockets; send a plain HTTP request", code="unsupported_upgrade")

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
