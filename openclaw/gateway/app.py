"""The HTTP application: keys, limits, routes and background tasks.

Every request passes `openclaw.gateway.guard` first, then goes to `openclaw.gateway.chat`, which answers in each of
`openclaw.gateway.dialects`, or to `openclaw.gateway.routes` and `openclaw.gateway.episodes`. The application owns only the
tasks that sweep sessions and watch files.

`SteadyClock` tells how old something is by a wall clock that may jump. While this process lives, it moves no faster than
the machine's uptime, which counts time asleep, so a clock that jumps ahead makes nothing old at once. The next process
believes the wall clock again, so time in which nobody ran counts in full.

`Reloader` reads the keys file and the certificate again when they change, within `POLL_SECONDS`. If the new file is
unusable, the previous contents remain valid; the error is logged and counted once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from prometheus_client import CollectorRegistry
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from groundwork.exceptions import ConfigError
from openclaw.config.bounds import BODY_MEMORY
from openclaw.gateway.adapters import AdapterDesk, add_adapter_routes
from openclaw.gateway.auth import EPISODE_KEY, Keyring, key_digest, sender, sent_key
from openclaw.gateway.chat import ChatService, Completions, count
from openclaw.gateway.dialects import DIALECTS, RESPONSES, TEXT
from openclaw.gateway.episodes import add_episode_routes
from openclaw.gateway.errors import answer_errors
from openclaw.gateway.guard import Doorway, Guard, RequestHeaders
from openclaw.gateway.lessons import add_lesson_routes
from openclaw.gateway.limits import Admission, Bodies
from openclaw.gateway.log_in import LogIns
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.openapi import describe
from openclaw.gateway.own_adapters import OwnAdapters
from openclaw.gateway.response_desk import ResponseDesk, add_response_routes
from openclaw.gateway.routes import add_model_routes, add_session_routes, add_status_routes
from openclaw.gateway.shared import Shared, admit_episode
from openclaw.gateway.under_way import InFlightRegistry
from openclaw.gateway.usage import UsageDesk, add_usage_routes
from openclaw.gateway.window import add_window_routes
from openclaw.gateway.window_events import PageEvents
from openclaw.gateway.window_views import Views

logger = logging.getLogger(__name__)

NOTICED_SECONDS = 60.0
"""Smaller steps of the wall clock are corrections."""


def uptime() -> float:
    """Return seconds since some moment, time asleep included where the system counts it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class SteadyClock:
    """A wall clock whose jumps are known; not for several threads."""

    def __init__(self, wall: Callable[[], float], passed: Callable[[], float] = uptime) -> None:
        """``wall``: seconds since the epoch; ``passed``: seconds since some moment."""
        self._wall = wall
        self._passed = passed
        self._first = self._last = wall() - passed()

    def now(self) -> float:
        """Return seconds since the epoch, without the wall clock's jumps ahead."""
        return min(self._wall(), self._first + self._passed())

    def jump(self) -> float:
        """Return the seconds by which the wall clock has jumped since the last call; 0 for small corrections."""
        result = self._wall() - self._passed() - self._last
        if abs(result) < NOTICED_SECONDS:
            return 0.0
        self._last += result
        logger.warning(
            "the machine's clock jumped by %+.0f s: episodes keep the time they had left, and until the next start "
            "OPENCLAW_RETENTION_DAYS counts the time that has passed",
            result,
        )
        return result


POLL_SECONDS = 1.0
Stamp = tuple[int, int, int] | None


class Reloader:
    """Calls a function when one of its files changes; `now` calls all functions."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._watched: list[tuple[Sequence[Path], Callable[[], None]]] = []
        self.on_reloaded: Callable[[], None] = lambda: None
        """Called after each change that is usable."""
        self._stamps: dict[Path, Stamp] = {}

    def watch(self, paths: Sequence[Path], read: Callable[[], None]) -> None:
        """Register ``read`` for changes of ``paths``."""
        self._watched.append((paths, read))
        self._stamps.update({path: _stamp(path) for path in paths})

    def now(self) -> None:
        """Read everything again."""
        for paths, read in self._watched:
            self._read(paths, read)

    async def run(self) -> None:
        """Watch the files in an endless loop."""
        while self._watched:
            await asyncio.sleep(POLL_SECONDS)
            for paths, read in self._watched:
                if any(_stamp(path) != self._stamps[path] for path in paths):
                    self._read(paths, read)

    def _read(self, paths: Sequence[Path], read: Callable[[], None]) -> None:
        self._stamps.update({path: _stamp(path) for path in paths})
        names = ", ".join(map(str, paths))
        try:
            read()
        except (ConfigError, OSError) as error:
            self._metrics.reload_failures.inc()
            logger.error("%s changed but is unusable; the previous contents remain valid: %s", names, error)
        else:
            logger.info("reloaded %s", names)
            self.on_reloaded()


def _stamp(path: Path) -> Stamp:
    """Return a value that changes with the file; None if it is missing."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


MAX_SWEEP_SECONDS = 30.0
SETTLE_EVERY = 5.0
SECONDS_A_DAY = 86400.0
UNTRACED: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
"""The framework's own telemetry, which it looks for at every request; the runtime has metrics of its own."""


class GuardedApp(FastAPI):
    """An application behind the guard, which also sees 500 answers; ``reloader`` reloads keys and certificates."""

    reloader: Reloader
    doorway: Doorway
    desk: ResponseDesk
    guard: Callable[[ASGIApp], Guard]
    endpoints: Mapping[str, Completions]
    """By path."""
    pages: PageEvents | None = None
    """That are open in the window, if there is one."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI description of all routes."""
        if self.openapi_schema is None:
            describe(super().openapi())
        return super().openapi()

    def build_middleware_stack(self) -> ASGIApp:
        """Put CORS and the guard first; a request for a reply then bypasses the routing."""
        routes = super().build_middleware_stack()

        async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
            asked = self.endpoints.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
            await (asked or routes)(scope, receive, send)

        return self.doorway.with_cors(self.guard(dispatch))


def create_app(
    service: ChatService,
    registry: CollectorRegistry,
    keyring: Keyring | None = None,
    slots: InFlightRegistry | None = None,
    adapters: OwnAdapters | None = None,
    workers: Callable[[], int] | None = None,
    views: Views | None = None,
) -> GuardedApp:
    """Return the application that answers with ``service`` and exposes the metrics of ``registry``.

    ``adapters``: everybody's own; None if people share their weights. ``workers`` counts those alive; None: there are none.
    ``views``: of the window; None: there is no window.

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
        if views is not None:
            await views.close()
        await service.close()

    app = GuardedApp(title="OpenClaw-RL gateway", lifespan=lifespan, docs_url=None, redoc_url=None, telemetry=UNTRACED)
    app.reloader = reloader
    app.doorway = Doorway(config)
    answer_errors(app)
    desk = app.desk = ResponseDesk(service, service.ledger)
    app.endpoints = reply_endpoints(service, desk)
    processes = config.workers if workers else 1
    log_ins = None if views is None else LogIns(keyring, config.port)
    slots = slots or InFlightRegistry()
    app.guard = partial(_guard, service, app.endpoints, app.doorway, keyring, slots, processes, log_ins=log_ins)
    app.router.routes += [Route(path, endpoint, methods=["POST"]) for path, endpoint in app.endpoints.items()]
    add_session_routes(app, service)
    add_response_routes(app, desk)
    add_lesson_routes(app, service.lessons)
    own = AdapterDesk(service, adapters)
    add_adapter_routes(app, own)
    add_episode_routes(app, service.episodes)
    add_model_routes(app, service)
    meters = UsageDesk(config, service.ledger.usage, keyring, service.clock)
    if config.quotas or config.api_keys_file:  # which may get quotas while the server runs
        service.limits.check_quota = meters.check
    add_usage_routes(app, meters)
    add_status_routes(app, service, registry, keyring, meters, workers, has_window=views is not None)
    if views is not None and log_ins is not None:
        app.pages = PageEvents(views, config.keepalive_seconds)
        add_window_routes(app, service, own, views, log_ins, app.pages, meters)
    return app


def reply_endpoints(service: ChatService, desk: ResponseDesk) -> dict[str, Completions]:
    """Return the endpoints at which clients ask for replies, by path."""
    admission = Admission()
    begins = {TEXT.path: service.text_reply, RESPONSES.path: desk.begin}
    return {
        dialect.path: Completions(
            service,
            dialect,
            begins.get(dialect.path, service.reply),
            admission,
            desk.completed if dialect is RESPONSES else None,
        )
        for dialect in DIALECTS
    }


def _guard(
    service: ChatService,
    endpoints: Mapping[str, Completions],
    doorway: Doorway,
    keyring: Keyring,
    slots: InFlightRegistry,
    processes: int,
    app: ASGIApp,
    log_ins: LogIns | None = None,
) -> Guard:
    """Return the guard in front of ``app`` in one of so many ``processes``."""

    def count_refused(path: str, status: int) -> None:
        if path in endpoints:
            count(service.metrics, status)

    config = service.config
    return Guard(
        app,
        doorway=doorway,
        keyring=keyring,
        bodies=Bodies(
            config.max_body_bytes,
            most_of_a_key=config.concurrent_per_key if config.api_keys_file else None,
            memory=max(config.max_body_bytes, BODY_MEMORY.most // processes),
        ),
        limits=service.limits,
        metrics=service.metrics,
        on_refused=count_refused,
        log_contents=config.log_contents,
        slots=slots,
        log_ins=log_ins,
    )


def create_worker_app(
    service: ChatService, shared: Shared, desk: ResponseDesk, keyring: Keyring, slots: InFlightRegistry
) -> ASGIApp:
    """Return the application of a worker (`openclaw.gateway.shared`): it replies, and passes on every other request."""
    endpoints, doorway = reply_endpoints(service, desk), Doorway(service.config)

    async def reply(scope: Scope, receive: Receive, send: Send) -> None:
        await endpoints[scope["path"]](scope, receive, send)

    guarded = doorway.with_cors(_guard(service, endpoints, doorway, keyring, slots, service.config.workers, reply))

    async def lifespan(receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await service.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in endpoints:
            await shared.pass_on(scope, receive, send)
            return
        key = sent_key(RequestHeaders(scope))
        digest, address = key_digest(key), sender(scope)
        if key.startswith(EPISODE_KEY):
            await admit_episode(shared, keyring, digest)
        elif key and keyring.names:  # without a key this process's own guard refuses
            known = keyring.find(digest) is not None
            if not known or not (keyring.worked(digest, address) or await shared.works(digest, address)):
                await shared.pass_on(scope, receive, send)
                return
        await guarded(scope, receive, send)

    return dispatch


async def _sweep(service: ChatService, clock: SteadyClock) -> None:
    """End idle sessions and delete those past the retention time, in an endless loop."""
    pause = min(MAX_SWEEP_SECONDS, service.config.session_idle_seconds / 4)
    while True:
        await asyncio.sleep(pause)
        try:
            await service.sessions.sweep()
            await delete_old(service, clock)
            await asyncio.to_thread(service.lessons.age)
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
