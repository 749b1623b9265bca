"""HTTP calls of the core and its plugins.

Guarantees: only transport errors and 5xx answers are retried. A 4xx answer is the caller's mistake and raises at once.
Owns the process-wide client that plugins share (``_http_client``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httpx

from groundwork.network import find_available_port as find_available_port  # plugins import both from here
from groundwork.network import is_port_available as is_port_available
from slime.args import Arguments
from slime.exceptions import HttpStatusError

if TYPE_CHECKING:
    from sglang_router.launch_router import RouterArgs  # pyright: ignore[reportMissingImports]

logger = logging.getLogger(__name__)

_http_client: httpx.AsyncClient | None = None
_proxy: str | None = None
_DIRECT_HOSTS = ("127.0.0.1", "localhost", "[::1]")
FIRST_DELAY_SECONDS = 0.2
MAX_DELAY_SECONDS = 5.0


def init_http_client(args: Arguments) -> None:
    """Create the shared client with one connection per concurrent engine request; a no-op without engines.

    ``--http-proxy`` applies to calls to other machines, also for a client created later.
    """
    global _http_client, _proxy
    _proxy = args.http_proxy
    if not args.rollout_num_gpus or _http_client is not None:
        return
    engines = max(1, args.rollout_num_gpus // args.rollout_num_gpus_per_engine)
    _http_client = _new_client(args.sglang_server_concurrency * engines)


def _new_client(connections: int = 512) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    mounts = direct_transports(limits)
    if _proxy is not None:
        mounts["all://"] = httpx.AsyncHTTPTransport(proxy=_proxy, limits=limits)
    return httpx.AsyncClient(timeout=None, limits=limits, mounts=mounts)


def direct_transports(limits: httpx.Limits) -> dict[str, httpx.AsyncHTTPTransport]:
    """Return client ``mounts`` that bypass any proxy for calls to this machine."""
    return {f"all://{host}": httpx.AsyncHTTPTransport(limits=limits) for host in _DIRECT_HOSTS}


def shared_client() -> httpx.AsyncClient:
    """Return the process-wide client, created on first use."""
    global _http_client
    if _http_client is None:
        _http_client = _new_client()
    return _http_client


class Tries:
    """Retry policy of calls to engines: ``allowed`` tries with exponential backoff."""

    def __init__(self, allowed: int) -> None:
        self.allowed = max(1, allowed)
        self.begin_again()

    def begin_again(self) -> None:
        """Reset the count of failures after a success."""
        self.failures, self._delay = 0, FIRST_DELAY_SECONDS

    def failed(self, error: httpx.TransportError | HttpStatusError) -> None:
        """Count a failure; raise ``error`` if it is a 4xx answer or no try is left."""
        self.failures += 1
        if (isinstance(error, HttpStatusError) and error.status < 500) or self.failures >= self.allowed:
            raise error

    async def pause(self) -> None:
        """Wait before the next try."""
        await asyncio.sleep(self._delay * random.uniform(0.5, 1.0))
        self._delay = min(self._delay * 2, MAX_DELAY_SECONDS)


async def _request(method: str, url: str, payload: Any, headers: dict | None, max_retries: int) -> Any:
    tries = Tries(max_retries)
    while True:
        try:
            response = await shared_client().request(method, url, json=payload, headers=headers)
            if response.status_code >= 400:
                raise HttpStatusError(url, response.status_code, response.text)
        except (httpx.TransportError, HttpStatusError) as error:
            tries.failed(error)
            logger.warning("%s %s failed (%s), attempt %d of %d", method, url, error, tries.failures, tries.allowed)
            await tries.pause()
            continue
        try:
            return response.json()
        except ValueError:
            return response.text


async def post(url: str, payload: Any, max_retries: int = 60, headers: dict | None = None) -> Any:
    """POST ``payload`` as JSON; return the parsed JSON answer, or its text if it is not JSON.

    Raises:
        HttpStatusError: a 4xx answer, at once, or a 5xx answer, after ``max_retries`` tries.
        httpx.TransportError: the server was unreachable in all tries.
    """
    return await _request("POST", url, payload, headers, max_retries)


async def get(url: str, max_retries: int = 60) -> Any:
    """GET JSON; errors as in `post`."""
    return await _request("GET", url, None, None, max_retries)


async def stream_lines(response: httpx.Response) -> AsyncIterator[str]:
    """Yield the lines of a streamed body as they arrive.

    Only newlines end a line. httpx would also split at U+2028 and others, which may occur in a JSON string.
    """
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode()
    if rest:
        yield rest.decode()


def get_host_info() -> tuple[str, str]:
    """Return the host name and the address that other nodes use (``SLIME_HOST_IP`` overrides it)."""
    name = socket.gethostname()
    address = os.environ.get("SLIME_HOST_IP")
    if address:
        return name, address
    family = socket.AF_INET6 if os.environ.get("SLIME_PREFER_IPV6") == "1" else socket.AF_INET
    try:
        return name, str(socket.getaddrinfo(name, None, family)[0][4][0])
    except socket.gaierror:
        return name, "127.0.0.1"


def _wrap_ipv6(address: str) -> str:
    """Return an address for use in a URL: IPv6 in brackets."""
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


def run_router(args: RouterArgs) -> None:
    """Serve ``sglang_router`` in this process until the process ends; ``args`` are the router's own."""
    from sglang_router.launch_router import launch_router  # pyright: ignore[reportMissingImports]

    launch_router(args)  # pyright: ignore[reportArgumentType]


def terminate_process(process: Any, timeout: float = 10.0) -> None:
    """End a ``multiprocessing.Process``: SIGTERM, then SIGKILL after ``timeout`` seconds; a no-op if it is gone."""
    if not process.is_alive():
        return
    process.terminate()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        process.join()
