"""A helper process of the gateway that starts at the first demand, ends when nobody needs it, and is asked over a `Channel`.

Guarantees: it ends with this process, and `idle_seconds` after its last use, so whoever never needs it pays nothing. One that died
is started again by the next use. A start goes on when whoever asked for it leaves, so no process is lost. The event loop waits
for it and does nothing itself. Used from one event loop.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from groundwork.process import ChildProcess, spawn
from openclaw.gateway.channel import Channel
from openclaw.runtime.where import own_import_paths


class KeptProcess:
    """A program that takes the descriptor of its end of the channel as its first argument."""

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        name: str,
        idle_seconds: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare to run the module ``program``; nothing is started.

        Args:
            program: a module.
            arguments: its further arguments.
            name: for messages.
            idle_seconds: how long it stays after its last use.
            environment: what its environment has besides this process's.
        """
        self._command = program, *arguments
        self._name = name
        self._idle_seconds = idle_seconds
        self._environment = environment or {}
        self._starting: asyncio.Task[Channel] | None = None
        self._channel: Channel | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[int]] = set()
        self.child: ChildProcess | None = None
        self.uses = 0
        """Uses under way."""

    @property
    def pid(self) -> int | None:
        """The process, or None."""
        return None if self.child is None else self.child.pid

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep the process, once it runs, for the length of the block."""
        self.uses += 1
        if self._timer is not None:
            self._timer.cancel()
        try:
            yield
        finally:
            self.uses -= 1
            if not self.uses:
                self._timer = asyncio.get_running_loop().call_later(self._idle_seconds, self.end)

    async def channel(self) -> Channel:
        """Return the channel to the process, which is started if there is none; for use within `used`."""
        if self._starting is None:
            if self._channel is not None and not self._channel.is_lost:
                return self._channel
            self._reap()
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    def end(self) -> None:
        """End the process, if there is one; one that starts ends as soon as it has."""
        if self._starting is not None:
            self._starting.add_done_callback(lambda _: self.end())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._reap()

    async def close(self) -> None:
        """End the process, and wait for its end."""
        if self._starting is not None:
            await asyncio.wait({self._starting})
        self.end()
        if self._ending:
            await asyncio.wait(self._ending)

    async def _start(self) -> Channel:
        try:
            self.child, self._channel = await self._started()
            return self._channel
        finally:
            self._starting = None

    async def _started(self) -> tuple[ChildProcess, Channel]:
        ours, theirs = socket.socketpair()
        program, *arguments = self._command
        command = [sys.executable, "-m", program, str(theirs.fileno()), *arguments]
        environment = {**os.environ, **self._environment, "PYTHONPATH": os.pathsep.join(own_import_paths())}
        start = partial(spawn, command, env=environment, name=self._name, keeps=[theirs.fileno()])
        try:
            child = await asyncio.to_thread(start)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        channel = Channel({}, lambda: None)
        await channel.open(ours)
        return child, channel

    def _reap(self) -> None:
        """Reap the process, which ends when its channel does."""
        if self.child is not None:
            task = asyncio.get_running_loop().create_task(asyncio.to_thread(self.child.kill))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            self.child = None
