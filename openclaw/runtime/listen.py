"""The HTTP server of the runtime process: uvicorn behind a `Door`.

Guarantees: connections, TLS handshakes included, have the bounds of `openclaw.gateway.protocol`. They leave at least half
of the process's files to engine connections, ledger and logs. Signals stay with `openclaw.runtime.serve`.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

from openclaw.config.bounds import HANDSHAKE_SECONDS
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.protocol import Door, DoorBounds

logger = logging.getLogger("openclaw.runtime")

MAX_FILES = 65536
OTHER_FILES = 256
"""Of ledger, logs, libraries and the judge."""
MIN_CONNECTIONS = 16


def room_for_connections(wanted: int) -> int:
    """Return how many connections to allow, at most ``wanted``; raise the soft limit on open files first.

    Every request under way also needs a connection to an engine.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    files = MAX_FILES if soft == resource.RLIM_INFINITY else soft
    room = max(MIN_CONNECTIONS, min(wanted, (files - OTHER_FILES) // 2))
    if room < wanted:
        logger.warning(
            "%d open files allow %d connections, not OPENCLAW_MAX_CONNECTIONS=%d; raise the limit: ulimit -n %d",
            files,
            room,
            wanted,
            2 * wanted + OTHER_FILES,
        )
    return room


class GatewayServer(uvicorn.Server):
    """uvicorn with bounded connections, without signal handlers."""

    def __init__(
        self, app: ASGIApp, config: RuntimeConfig, metrics: GatewayMetrics, bounds: DoorBounds | None = None
    ) -> None:
        """Prepare to serve ``app``; ``bounds`` default to those of ``config``."""
        self._door = Door(
            bounds or DoorBounds(room_for_connections(config.max_connections)),
            lambda name: metrics.limit_hits.labels(limit=name).inc(),
        )
        super().__init__(
            uvicorn.Config(
                app,
                host=config.host,
                port=config.port,
                log_level=config.log_level.lower(),
                access_log=False,
                timeout_graceful_shutdown=config.grace_seconds,
                timeout_keep_alive=self._door.bounds.keep_alive_seconds,
                lifespan="on",
                ssl_certfile=config.tls_cert,
                ssl_keyfile=config.tls_key,
                http=self._door.protocol,  # type: ignore[arg-type]  # called like a class
                ws="none",
                proxy_headers=False,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then listen; uvicorn itself cannot bound TLS handshakes."""
        await super().startup([])
        config = self.config

        def connection() -> asyncio.Protocol:
            return self._door.protocol(config=config, server_state=self.server_state, app_state=self.lifespan.state)

        try:
            listener = await asyncio.get_running_loop().create_server(
                connection,
                config.host,
                config.port,
                backlog=config.backlog,
                ssl=config.ssl,
                ssl_handshake_timeout=HANDSHAKE_SECONDS.most if config.ssl else None,
            )
        except OSError as error:
            logger.error("%s", error)
            await self.lifespan.shutdown()
            sys.exit(STARTUP_FAILURE)
        self.servers.append(listener)
        addresses = [":".join(map(str, item.getsockname()[:2])) for item in listener.sockets]
        logger.info("the gateway listens on %s", ", ".join(addresses))
