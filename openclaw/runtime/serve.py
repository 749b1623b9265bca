"""Serve the gateway and run the judge loop in one event loop: ``python -m openclaw.runtime``.

Guarantees:

* The process reads only its environment (`openclaw.config`). If the configuration cannot work, it says why and ends before
  it listens.
* SIGTERM and SIGINT end it cleanly. It accepts no new connections and gives running replies ``OPENCLAW_GRACE_SECONDS``. It
  records cut-off replies as aborted, leaves turns under judgement pending, and closes the ledger.
* SIGHUP reloads keys and certificate. SIGUSR1 writes the stacks of all threads to the log.
* It ends with its parent process (`groundwork.process`).
* Without ``OPENCLAW_METHOD`` it only serves and records.

Owns this process's connection to the ledger.

**Garbage** is collected while the process is idle, not in the middle of a reply. Nearly all objects of a request are freed when it ends; only about one per request needs Python's collector. By default the
collector runs after every 700 new objects and blocks everything else: with 190 replies under way for 10 to 60 ms, several
times a second. Here it never scans objects that exist at `settle` again, and runs about every `COLLECT_SECONDS`, once no reply is
under way. Memory stays bounded on a server that is never idle: more than `groundwork.garbage.MAX_NEW_OBJECTS` unfreed new objects
start the collector at once. The only state is the interpreter's own.

**HTTP** is uvicorn behind a `Door`. Connections, TLS handshakes included, have the bounds of `openclaw.gateway.protocol`. They leave at least half
of the process's files to engine connections, ledger and logs.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

from chat_codec.formats import reply_format
from chat_codec.renderer import Renderer
from chat_codec.reply_parser import Content, ReplyParser
from groundwork import tracing
from groundwork.exceptions import ConfigError
from groundwork.garbage import collect_rarely
from groundwork.process import watch_lifeline
from groundwork.processors import load_processor, load_tokenizer
from groundwork.start_timeline import GATEWAY, Step, mark
from openclaw.config.bounds import HANDSHAKE_SECONDS
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway import under_way
from openclaw.gateway.app import create_app
from openclaw.gateway.auth import Keyring
from openclaw.gateway.chat import ChatService
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.protocol import Door, DoorBounds
from openclaw.gateway.tls import check_certificate, load_certificate
from openclaw.gateway.under_way import InFlightRegistry
from openclaw.judge.measure import ReadReply
from openclaw.judge.wiring import JudgeLoop, build_judge_loop
from openclaw.ledger.exceptions import LedgerError
from openclaw.ledger.record_files import RecordFiles
from openclaw.ledger.store import Ledger
from openclaw.method import trains_rewards
from openclaw.practice.loop import PracticeLoop
from openclaw.practice.wiring import build_practice
from openclaw.privacy.redactor import build_redactor
from openclaw.privacy.secret_finder import OwnKeyFinder, secret_values
from openclaw.runtime.adapters import RunAdapters
from openclaw.runtime.earlier import EarlierProcess
from openclaw.runtime.where import requests_path
from openclaw.runtime.window import WindowProcess
from openclaw.runtime.workers import Workers
from slime.utils.model_config import config_or_none

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
        self,
        app: ASGIApp,
        config: RuntimeConfig,
        metrics: GatewayMetrics,
        bounds: DoorBounds | None = None,
        sockets: Sequence[socket.socket] | None = None,
    ) -> None:
        """Prepare to serve ``app``; ``bounds`` and ``sockets`` default to those of ``config``."""
        self.metrics = metrics
        self._run_dir = config.run_dir
        self._sockets = sockets
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
        try:
            if self._sockets is None:
                self.servers.append(await self.listen(host=self.config.host, port=self.config.port))
            for sock in self._sockets or ():
                self.servers.append(await self.listen(sock=sock))
        except OSError as error:
            logger.error("%s", error)
            await self.lifespan.shutdown()
            sys.exit(STARTUP_FAILURE)
        addresses = [":".join(map(str, sock.getsockname()[:2])) for item in self.servers for sock in item.sockets]
        if addresses:
            logger.info("the gateway listens on %s", ", ".join(addresses))
            mark(self._run_dir, GATEWAY, Step.LISTENS)

    async def listen(self, **where: Any) -> asyncio.Server:
        """Return what accepts connections at a ``host`` and ``port``, or of a ``sock``, until it is closed."""
        config = self.config

        def connection() -> asyncio.Protocol:
            return self._door.protocol(config=config, server_state=self.server_state, app_state=self.lifespan.state)

        return await asyncio.get_running_loop().create_server(
            connection,
            backlog=config.backlog,
            ssl=config.ssl,
            ssl_handshake_timeout=HANDSHAKE_SECONDS.most if config.ssl else None,
            **where,
        )


COLLECT_SECONDS = 30.0
LOOK_SECONDS = 0.5


def settle() -> None:
    """Exempt all current objects from collection, and leave later garbage to `collect_when_quiet`."""
    gc.collect()
    gc.freeze()
    collect_rarely()


async def collect_when_quiet(busy: Callable[[], bool], every: float = COLLECT_SECONDS) -> None:
    """Collect garbage forever, each time ``every`` seconds later, or once ``busy()`` is false."""
    while True:
        await asyncio.sleep(every)
        while busy():
            await asyncio.sleep(min(LOOK_SECONDS, every))
        gc.collect()


logger = logging.getLogger("openclaw.runtime")

CONFIG_EXIT = 2
PICTURE_MODELS = ("qwen3_vl", "qwen3_vl_moe")
THREAD_SWITCH_SECONDS = 0.0005  # how long the event loop and the threads of ledger and renderer wait for each other


def check_tokenizer(tokenizer: Any, path: str) -> None:
    """Raise ConfigError if the tokenizer has ids that its model lacks: such an id crashes an engine."""
    vocab_size = (config_or_none(path) or {}).get("vocab_size")
    if vocab_size is not None and len(tokenizer) > vocab_size:
        raise ConfigError(
            f"OPENCLAW_TOKENIZER={path}: the tokenizer has {len(tokenizer)} ids, but the model has {vocab_size}; "
            "use a checkpoint with a matching tokenizer"
        )


def eyes_of(path: str) -> Any | None:
    """Return the processor of a checkpoint that sees pictures, or None; only Qwen3-VL's keeps prompt ids exact in SGLang."""
    if (config_or_none(path) or {}).get("model_type") not in PICTURE_MODELS:
        return None
    processor = load_processor(path)
    if processor is None:
        raise ConfigError(
            f"OPENCLAW_TOKENIZER={path} is a vision-language model, but its processor cannot be loaded; "
            "add preprocessor_config.json and the packages that it needs (pip install pillow)"
        )
    return processor


def reply_texts(tokenizer: Any, renderer: Renderer, config: RuntimeConfig) -> ReadReply:
    """Return what reads the visible text of reply ids to prompt ids; tool calls are text."""
    reasoning = reply_format(
        getattr(tokenizer, "chat_template", None) or "",
        reasoning_parser=config.reasoning_parser,
        tool_call_parser=config.tool_call_parser,
        reasoning_tags=config.reasoning_tags,
    ).reasoning

    def read(prompt_ids: Sequence[int], ids: Sequence[int]) -> str:
        inside = reasoning is not None and renderer.thought_at_end(prompt_ids, reasoning) == "open"
        parser = ReplyParser(reasoning=reasoning, inside_reasoning=inside)
        end = len(ids) - 1 if ids and ids[-1] in tokenizer.all_special_ids else len(ids)
        deltas = parser.push(tokenizer.decode(ids[:end], skip_special_tokens=False)) + parser.finish()
        return "".join(delta.text for delta in deltas if isinstance(delta, Content))

    return read


async def serve(config: RuntimeConfig) -> None:
    """Serve and judge until SIGTERM or SIGINT.

    Raises:
        ConfigError: the configuration cannot work.
    """
    config.require("policy_url", "tokenizer", "ledger")
    tokenizer = load_tokenizer(config.tokenizer or "")
    check_tokenizer(tokenizer, config.tokenizer or "")
    check_certificate(config)
    if config.log_contents:
        logger.warning("OPENCLAW_LOG_CONTENTS=1 logs every conversation in plain text; unset it after debugging")
    registry = CollectorRegistry()
    renderer = Renderer(tokenizer)
    keyring = Keyring(config.api_key, config.api_keys_file)
    own_keys = OwnKeyFinder(secret_values(os.environ), keyring.holds if keyring.path else None)
    ledger = Ledger(config.ledger or "", redaction=build_redactor(config.redact, registry, own_keys))
    ledger.sessions.reserve()
    records = RecordFiles(ledger.path, config.record_bytes) if config.record_bytes and config.run_dir else None
    under_way.delete(requests_path(config.ledger or ""))
    slots = InFlightRegistry(requests_path(config.ledger or ""))
    try:
        judge = None
        if config.method:
            judge = build_judge_loop(
                *(config, ledger, renderer.render, registry, renderer.render_reply),
                reply_texts(tokenizer, renderer, config),
            )
        topk = judge.student_topk if judge else 0
        service = ChatService(
            config,
            tokenizer,
            ledger,
            registry,
            renderer=renderer,
            processor=eyes_of(config.tokenizer or ""),
            on_pending=judge.notify if judge else lambda: None,
            topk=topk,
            trains_rewards=trains_rewards(config.method) if config.method else True,
            earlier=EarlierProcess(config) if config.run_dir else None,
        )
        if judge is not None:
            judge.worker.on_lessons = service.lessons.forget
        practice = build_practice(config, ledger, renderer, registry, judge.rubric if judge else None)
        own = (
            RunAdapters(ledger, config.run_dir, config.gate_offer)
            if config.run_dir and config.adapter_per_person
            else None
        )
        workers = Workers(config, registry) if config.workers > 1 else None
        if workers is not None:
            try:
                workers.bind()
            except OSError as error:
                raise ConfigError(str(error)) from error
        app = create_app(
            service,
            workers.metrics if workers else registry,
            keyring,
            slots,
            own,
            workers.alive if workers else None,
            views=WindowProcess(config),
        )
        server = GatewayServer(app, config, service.metrics, sockets=() if workers else None)
        if config.tls_cert and config.tls_key:
            app.reloader.watch([Path(config.tls_cert), Path(config.tls_key)], lambda: renew_certificate(server, config))
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, app.reloader.now)
        if records is not None:
            records.start()
        settle()
        sys.setswitchinterval(THREAD_SWITCH_SECONDS)
        garbage = asyncio.create_task(collect_when_quiet(lambda: service.replies.under_way > 0))
        try:
            keep = partial(workers.run, server, app, service, keyring, topk) if workers else None
            await _run(server, judge, practice, keep, lambda: app.pages and app.pages.stop())
        finally:
            garbage.cancel()
            if records is not None:
                records.close()
    finally:
        ledger.close()
        slots.close()


def renew_certificate(server: uvicorn.Server, config: RuntimeConfig) -> None:
    """Use the current certificate files for new connections."""
    check_certificate(config)
    if server.config.ssl is not None:
        load_certificate(server.config.ssl, config)


async def _run(
    server: uvicorn.Server,
    judge: JudgeLoop | None,
    practice: PracticeLoop | None,
    keep_workers: Callable[[asyncio.Event], Coroutine[Any, Any, None]] | None,
    on_end: Callable[[], object],
) -> None:
    """Run server, judge loop, practice and workers until one of them ends, then end the others; workers end before the server.

    ``on_end`` is called as soon as the end begins.
    """
    stop = asyncio.Event()

    def end() -> None:
        stop.set()
        on_end()
        server.should_exit = server.should_exit or keep_workers is None

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    tasks = [asyncio.create_task(server.serve(), name="gateway")]
    if judge is None:
        logger.info("OPENCLAW_METHOD is not set: turns are recorded but not judged")
    else:
        tasks.append(asyncio.create_task(judge.run(stop), name="judge"))
    if keep_workers is not None:
        tasks.append(asyncio.create_task(keep_workers(stop), name="workers"))
    if practice is not None:
        tasks.append(asyncio.create_task(practice.run(stop), name="practice"))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        end()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def set_up_logs(config: RuntimeConfig) -> None:
    """Log to standard error, as the configuration says."""
    logging.basicConfig(
        level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)


def main() -> int:
    """Run the process and return its exit status."""
    watch_lifeline()
    try:
        config = RuntimeConfig.from_env()
        set_up_logs(config)
        for name, value, source in config.describe():
            logger.debug("%s=%s (%s)", name, value, source)
        mark(config.run_dir, GATEWAY, Step.LOADED)
        tracing.start("gateway")
        uvloop.run(serve(config))
    except (ConfigError, LedgerError) as error:
        print(f"openclaw.runtime: {error}", file=sys.stderr)
        return CONFIG_EXIT
    finally:
        tracing.stop()
    return 0
