"""The HTTP application: keys, limits, routes and background tasks.

Every request passes `openclaw.gateway.guard` first, then goes to `openclaw.gateway.completions`
(``POST /v1/chat/completions``) or to `openclaw.gateway.routes`. The application owns only the tasks that sweep
sessions and watch files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from openclaw.gateway.auth import Keyring
from openclaw.gateway.bodies import Bodies
from openclaw.gateway.chat import ChatService
from openclaw.gateway.completions import CHAT_PATH, ChatCompletions, count
from openclaw.gateway.episode_routes import add_episode_routes
from openclaw.gateway.errors import answer_errors
from openclaw.gateway.guard import Guard
from openclaw.gateway.limits import RateLimits
from openclaw.gateway.openapi import describe
from openclaw.gateway.origin import Doorway
from openclaw.gateway.reload import Reloader
from openclaw.gateway.routes import add_model_routes, add_session_routes, add_status_routes
from openclaw.gateway.steady_clock import SteadyClock
from openclaw.gateway.under_way import Slots

logger = logging.getLogger(__name__)

LONGEST_SWEEP_SECONDS = 30.0
SETTLE_EVERY = 5.0
SECONDS_A_DAY = 86400.0


class GuardedApp(FastAPI):
    """An application behind the guard, which also sees 500 answers; ``reloader`` reloads keys and certificates."""

    reloader: Reloader
    doorway: Doorway
    guard: Callable[[ASGIApp], Guard]
    chat: ChatCompletions

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI description of all routes."""
        if self.openapi_schema is None:
            describe(super().openapi())
        return super().openapi()

    def build_middleware_stack(self) -> ASGIApp:
        """Put CORS and the guard first; a chat completion then bypasses the routing."""
        routes = super().build_middleware_stack()

        async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
            chat = scope["type"] == "http" and scope["path"] == CHAT_PATH and scope["method"] == "POST"
            await (self.chat if chat else routes)(scope, receive, send)

        return self.doorway.with_cors(self.guard(dispatch))


def create_app(
    service: ChatService, registry: CollectorRegistry, keyring: Keyring | None = None, slots: Slots | None = None
) -> GuardedApp:
    """Return the application that answers with ``service`` and exposes the metrics of ``registry``.

    Raises:
        ConfigError: if no ``keyring`` is given and the keys file is unusable.
    """
    config = service.config
    keyring = keyring or Keyring(config.api_key, config.api_keys_file)
    service.episodes.keep(keyring.episodes)
    reloader = Reloader(service.metrics)
    if keyring.path is not None:
        reloader.watch([keyring.path], keyring.reload)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        clock = SteadyClock(service.clock)
        tasks = [
            asyncio.create_task(_sweep(service, clock)),
            asyncio.create_task(_sweep_episodes(service, clock)),
            asyncio.create_task(reloader.run()),
        ]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await service.close()

    def count_refused(path: str, status: int) -> None:
        if path == CHAT_PATH:
            count(service.metrics, status)

    app = GuardedApp(title="OpenClaw-RL gateway", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.reloader = reloader
    app.doorway = Doorway(config)
    app.guard = partial(
        Guard,
        doorway=app.doorway,
        keyring=keyring,
        bodies=Bodies(config.max_body_bytes, most_of_a_key=config.concurrent_per_key if config.api_keys_file else None),
        limits=RateLimits.of(config),
        metrics=service.metrics,
        on_refused=count_refused,
        log_contents=config.log_contents,
        slots=slots or Slots(),
    )
    answer_errors(app)
    app.chat = ChatCompletions(service)
    app.router.routes.append(Route(CHAT_PATH, app.chat, methods=["POST"]))
    add_session_routes(app, service)
    add_episode_routes(app, service)
    add_model_routes(app, service)
    add_status_routes(app, service, registry, keyring)
    return app


async def _sweep(service: ChatService, clock: SteadyClock) -> None:
    """End idle sessions and delete those past the retention time, in an endless loop."""
    pause = min(LONGEST_SWEEP_SECONDS, service.config.session_idle_seconds / 4)
    while True:
        await asyncio.sleep(pause)
        try:
            await service.sessions.sweep()
            await delete_old(service, clock)
            await service.sessions.erase()
        except Exception:
            service.metrics.ledger_failures.inc()
            logger.exception("sweeping idle and old sessions failed; next try in %.1f s", pause)


async def delete_old(service: ChatService, clock: SteadyClock) -> None:
    """Delete sessions and episodes that were idle for longer than the retention time."""
    if service.config.retention_days is None:
        return
    since = clock.now() - service.config.retention_days * SECONDS_A_DAY
    forgotten = await service.sessions.forget_quiet(since)
    await service.episodes.forget_quiet(since)
    if forgotten:
        logger.info("deleted %d sessions that were idle for OPENCLAW_RETENTION_DAYS", forgotten)


async def _sweep_episodes(service: ChatService, clock: SteadyClock) -> None:
    """End episodes whose time is over and settle what waits, at once and then in an endless loop."""
    while True:
        try:
            await service.episodes.sweep(clock.jump())
        except Exception:
            service.metrics.ledger_failures.inc()
            logger.exception("settling episodes failed; next try in %.1f s", SETTLE_EVERY)
        await asyncio.sleep(SETTLE_EVERY)
