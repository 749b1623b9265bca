"""The process that reads and renders the window's views (`openclaw.window`), for the gateway.

Guarantees: it starts with the first look and ends after `IDLE_SECONDS` without one, so who never looks pays nothing. It ends with
this process. One that dies is started again by the next look. The gateway's event loop waits for it and does nothing itself.
Owned by the leading process of a gateway.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial

from groundwork.process import ChildProcess, spawn
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.channel import Channel, ChannelLostError
from openclaw.gateway.errors import ApiError
from openclaw.gateway.window_views import Asked, ChangeError, UnknownViewError
from openclaw.runtime.where import own_import_paths

logger = logging.getLogger(__name__)

PROGRAM = "openclaw.window"
IDLE_SECONDS = 900.0
PATIENCE_SECONDS = 60.0
"""How long a look may take; the first one of a turn's story loads torch."""
TRIES = 2
MOST_LOOKS = 64
"""Looks under way. A further one is refused, so that who loads hundreds of pages makes nobody wait until the time is over."""


class WindowProcess:
    """The views of one server (`openclaw.gateway.window_views.Views`)."""

    def __init__(self, config: RuntimeConfig, idle_seconds: float = IDLE_SECONDS) -> None:
        """Prepare to show the ledger and run of ``config``; nothing is started."""
        self._places = [config.ledger or "", config.run_dir or ""]
        self._idle_seconds = idle_seconds
        self._starting = asyncio.Lock()
        self._channel: Channel | None = None
        self._child: ChildProcess | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._under_way = 0
        self._ending: set[asyncio.Task[int]] = set()

    @property
    def pid(self) -> int | None:
        """The process, or None."""
        return None if self._child is None else self._child.pid

    async def show(self, asked: Asked) -> bytes:
        """Return what a look shows.

        Raises:
            ApiError: 503 if the process does not answer, or `MOST_LOOKS` are under way; 500 if it fails.
        """
        return await self._ask(lambda channel: channel.ask("show", asked))

    async def roll_back(self, version: str) -> None:
        """Let the run go back to a version of the weights that all share."""
        await self._ask(lambda channel: channel.ask("roll_back", version))

    async def accept(self) -> None:
        """Accept what the gate refused of the weights that all share."""
        await self._ask(lambda channel: channel.ask("accept"))

    async def style(self) -> bytes:
        """Return the style sheet."""
        return await self._ask(lambda channel: channel.ask("style"))

    async def close(self) -> None:
        """End the process."""
        self._end()
        if self._ending:
            await asyncio.wait(self._ending)

    async def _ask(self, question: Callable[[Channel], Awaitable[bytes]]) -> bytes:
        if self._under_way >= MOST_LOOKS:
            raise ApiError(503, "too many pages are loaded at once; load this one again", code="window_busy")
        self._under_way += 1
        if self._timer is not None:
            self._timer.cancel()
        try:
            return await self._asked(question)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._end)

    async def _asked(self, question: Callable[[Channel], Awaitable[bytes]]) -> bytes:
        for _ in range(TRIES):
            try:
                channel = await self._open()
                async with asyncio.timeout(PATIENCE_SECONDS):
                    return await question(channel)
            except ChannelLostError:
                logger.warning("the window's process ended; its log is above")
            except TimeoutError:
                logger.error("the window's process gave no answer for %g s", PATIENCE_SECONDS)
                self._end()
                break
            except (ApiError, UnknownViewError, ChangeError):
                raise
            except Exception as error:  # the process has logged it
                raise ApiError(500, "this page cannot be made; read why in the log of the server") from error
        raise ApiError(
            503,
            "the window cannot be shown now; load the page again, or read why in the log of the server",
            code="window_away",
        )

    async def _open(self) -> Channel:
        """Return the channel to the process, which is started if there is none."""
        async with self._starting:
            if self._channel is None or self._channel.is_lost:
                self._drop()
                self._channel = await self._start()
            return self._channel

    async def _start(self) -> Channel:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", PROGRAM, str(theirs.fileno()), *self._places]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(own_import_paths())}
        start = partial(spawn, command, env=environment, name="window", keeps=[theirs.fileno()])
        try:
            self._child = await asyncio.to_thread(start)
        finally:
            theirs.close()
        channel = Channel({}, lambda: None)
        await channel.open(ours)
        return channel

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._drop()

    def _drop(self) -> None:
        """Reap the process, which ends when its channel does."""
        if self._child is not None:
            task = asyncio.get_running_loop().create_task(asyncio.to_thread(self._child.kill))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            self._child = None
