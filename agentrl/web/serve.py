"""Run an application until SIGTERM or SIGINT.

Guarantee: what the service owns is ended before the server stops to listen, so requests under way get an answer.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

logger = logging.getLogger(__name__)
LEAVE_S = 2.0
LAST_ANSWERS_SECONDS = 5
"""Seconds for the last answers, after the service has ended."""


class Server(uvicorn.Server):
    """A server that leaves signals to `serve`."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def serve(app: FastAPI, listening: socket.socket, name: str, end: Callable[[], Awaitable[None]]) -> None:
    """Serve on ``listening``, say so, and await ``end`` when a signal asks to stop."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=LAST_ANSWERS_SECONDS,
    )
    server = Server(config)
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    serving = asyncio.create_task(server.serve(sockets=[listening]), name="server")
    stop = asyncio.create_task(asked.wait(), name="stop")
    print(f"{name}: listening on http://{shown}:{port}", flush=True)
    await asyncio.wait({serving, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    await end()
    server.should_exit = True
    await serving


def leave_soon(status: int) -> None:
    """Exit with ``status`` after `LEAVE_S` at the latest, once all that matters is closed.

    An environment that ignores its cancellation, or blocks a thread, would keep the process for ever otherwise.
    """

    def leave() -> None:
        logger.error("an environment does not let this process end; it exits now")
        logging.shutdown()
        os._exit(status)

    timer = threading.Timer(LEAVE_S, leave)
    timer.daemon = True
    timer.start()
