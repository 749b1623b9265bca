"""A stand-in engine and any web application, served in a test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

from slime.contract.engine import Script, StandInEngine

GRACE_SECONDS = 2.0


class _Server(uvicorn.Server):
    """Ends as soon as it is told to; uvicorn's own looks ten times a second, which is most of what a small test takes."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.end = asyncio.Event()

    def install_signal_handlers(self) -> None:
        """Leave the signals to the test runner."""

    async def main_loop(self) -> None:
        """Serve until `end` is set."""
        await self.on_tick(0)
        await self.end.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close what listens, let answers under way end for `GRACE_SECONDS`, then end the application."""
        for listener in [*self.servers, *(sockets or [])]:
            listener.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                while state.connections or state.tasks:
                    await asyncio.sleep(0.001)
        for task in state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


@contextlib.asynccontextmanager
async def serve(app: Any, port: int = 0) -> AsyncIterator[str]:
    """Serve an ASGI application on a loopback port, 0: a free one; yield its URL."""
    listener = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(app, log_level="warning", lifespan="on", ws="none")
    server = _Server(config)
    task = asyncio.create_task(server._serve([listener]))
    try:
        while not server.started:
            if task.done():
                task.result()
                raise RuntimeError("the server ended before it served")
            await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.end.set()
        await task
        listener.close()


@contextlib.asynccontextmanager
async def mock_engine(script: Script) -> AsyncIterator[StandInEngine]:
    """Serve a stand-in engine."""
    engine = StandInEngine(script)
    async with engine.serving():
        yield engine
