"""One worker of the gateway: ``python -m openclaw.runtime.worker``, which only `openclaw.runtime.workers` starts.

Guarantees: it answers requests for replies and passes on all others (`openclaw.gateway.shared`). It reads the ledger and never
writes it. It ends at once when the leading process is gone; asked to stop, it ends as `openclaw.runtime.serve` does.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence

import uvloop
from prometheus_client import CollectorRegistry

from groundwork import tracing
from groundwork.exceptions import ConfigError
from groundwork.garbage import collect_rarely
from groundwork.process import watch_lifeline
from groundwork.processors import load_tokenizer
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import create_worker_app
from openclaw.gateway.auth import Keyring
from openclaw.gateway.channel import Channel, Function
from openclaw.gateway.chat import ChatService
from openclaw.gateway.protocol import DoorBounds
from openclaw.gateway.response_desk import ResponseDesk
from openclaw.gateway.shared import PassedOn, Shared, heard
from openclaw.gateway.under_way import InFlightRegistry, of_worker
from openclaw.ledger.store import Ledger
from openclaw.runtime.serve import (
    THREAD_SWITCH_SECONDS,
    GatewayServer,
    collect_when_quiet,
    eyes_of,
    renew_certificate,
    room_for_connections,
    set_up_logs,
    settle,
)
from openclaw.runtime.where import requests_path

logger = logging.getLogger("openclaw.worker")

LEADERLESS_EXIT = 3


class _Life:
    """Whether the worker has been asked to end."""

    ending = False

    def lost(self) -> None:
        """End at once without a leading process: nothing can be recorded any more."""
        if not self.ending:
            os._exit(LEADERLESS_EXIT)


async def serve_worker(config: RuntimeConfig, number: int, topk: int, sockets: Sequence[socket.socket]) -> None:
    """Serve until the leading process says so; the first of ``sockets`` leads to it, the others are of clients."""
    life, registry, passed = _Life(), CollectorRegistry(), PassedOn()
    functions: dict[str, Function] = passed.functions()
    channel = passed.channel = Channel(functions, life.lost)
    shared = Shared.of(channel, passed, has_earlier=bool(config.run_dir))
    ledger = Ledger(config.ledger or "")
    ledger.database.only_read()
    service = ChatService(
        config,
        load_tokenizer(config.tokenizer or ""),
        ledger,
        registry,
        processor=eyes_of(config.tokenizer or ""),
        topk=topk,
        shared=shared,
    )
    keyring, desk = Keyring(config.api_key, config.api_keys_file), ResponseDesk(service, ledger)
    slots = InFlightRegistry(of_worker(requests_path(config.ledger or ""), number))
    app = create_worker_app(service, shared, desk, keyring, slots)
    bounds = DoorBounds(room_for_connections(-(-config.max_connections // config.workers)))
    server = GatewayServer(app, config, service.metrics, bounds, sockets[1:])

    def stop() -> None:
        life.ending = server.should_exit = True

    def reload() -> None:
        try:
            keyring.reload()
            renew_certificate(server, config)
        except (ConfigError, OSError) as error:  # it has changed again; the leading process says so
            logger.error("worker %d keeps the previous keys and certificate: %s", number, error)

    functions |= {
        **heard(service),
        "stop_response": desk.stop,
        "reload": reload,
        "stop": stop,
        "ping": lambda: None,
    }
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop)
    await channel.open(sockets[0])
    settle()
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    await channel.ask("ready")
    garbage = asyncio.create_task(collect_when_quiet(lambda: service.replies.under_way > 0))
    try:
        await server.serve()
    finally:
        garbage.cancel()
        life.ending = True
        channel.close()
        ledger.close()
        slots.close()


def main() -> None:
    """Run the process: its number, the method's top K, and the descriptors of its sockets."""
    watch_lifeline()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the leading process reloads, and says so
    number, topk, *descriptors = map(int, sys.argv[1:])
    config = RuntimeConfig.from_env()
    set_up_logs(config)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    tracing.start("gateway")
    try:
        uvloop.run(serve_worker(config, number, topk, [socket.socket(fileno=descriptor) for descriptor in descriptors]))
    finally:
        tracing.stop()


if __name__ == "__main__":
    collect_rarely()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    main()
