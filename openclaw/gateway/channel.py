"""Questions and answers between two processes of one gateway, over a socket that both inherit.

Guarantees: what one side says arrives in the order in which it was said, answers among it; so whoever got an answer has seen
all that the other side said before. A function of the table that is not a coroutine runs before the next message is
read. An error of a function is raised where it was asked, with its type and its attributes. When the other side is gone, what
waits for an answer gets `ChannelLostError`; functions that run go on to their end (`Channel.settled`).

Wire format: four bytes of length, then a pickle. A pickle can run any program, so only a pair of sockets that one process
made and gave to its own child may carry it (`socket.socketpair`): no other process can open that.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
import socket
import struct
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

from openclaw.exceptions import OpenClawError

logger = logging.getLogger(__name__)

LENGTH = struct.Struct("<I")
Function = Callable[..., Any]
"""Returns a value, or a coroutine that gives it."""


class ChannelLostError(OpenClawError):
    """The process at the other end is gone."""


class Channel(asyncio.Protocol):
    """One end, from `open` until either process closes its own."""

    def __init__(self, functions: Mapping[str, Function], on_lost: Callable[[], None]) -> None:
        """Create an end that answers with ``functions``, and calls ``on_lost`` once when the other end is gone."""
        self._functions = functions
        self._on_lost = on_lost
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    async def open(self, sock: socket.socket) -> None:
        """Begin over ``sock``, which this end owns from now on."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=sock)

    @property
    def is_lost(self) -> bool:
        """Whether the other end is gone."""
        return self._transport is None

    def tell(self, name: str, *args: Any) -> None:
        """Let the other side call a function, without an answer; a no-op if it is gone."""
        self._send((0, name, args))

    def ask(self, name: str, *args: Any) -> asyncio.Future[Any]:
        """Return what the other side's function will return.

        Raises:
            ChannelLostError: in the future, if the other side is gone.
        """
        future = asyncio.get_running_loop().create_future()
        if self.is_lost:
            future.set_exception(ChannelLostError("the other process is gone"))
            return future
        number = next(self._numbers)
        self._waiting[number] = future
        self._send((number, name, args))
        return future

    async def settled(self) -> None:
        """Wait until no function runs."""
        while self._running:
            await asyncio.wait(self._running)

    def close(self) -> None:
        """Close this end."""
        if self._transport is not None:
            self._transport.close()

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits, then say so."""
        self._transport = None
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ChannelLostError("the other process is gone"))
                future.exception()  # nobody may wait for it any more
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        """Act on each whole message."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= LENGTH.size:
            (size,) = LENGTH.unpack_from(buffer, start)
            end = start + LENGTH.size + size
            if len(buffer) < end:
                break
            self._act(*pickle.loads(bytes(buffer[start + LENGTH.size : end])))
            start = end
        del buffer[:start]

    def _send(self, message: tuple[int, str | None, Any]) -> None:
        if self._transport is not None:
            data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
            self._transport.write(LENGTH.pack(len(data)) + data)

    def _act(self, number: int, name: str | None, content: Any) -> None:
        """Take an answer, or call a function; one without a number is not answered."""
        if name is None:
            future = self._waiting.pop(number, None)
            if future is not None and not future.done():
                error, value = content
                if error is None:
                    future.set_result(value)
                else:
                    future.set_exception(_error(*error))
            return
        try:
            result = self._functions[name](*content)
        except Exception as error:  # noqa: BLE001  # given to whoever asked, or logged
            self._failed(number, name, error)
            return
        if asyncio.iscoroutine(result):
            task = asyncio.get_running_loop().create_task(self._finish(number, name, result))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        elif number:
            self._send((number, None, (None, result)))

    async def _finish(self, number: int, name: str, work: Coroutine[Any, Any, Any]) -> None:
        try:
            result = await work
        except Exception as error:  # noqa: BLE001  # given to whoever asked, or logged
            self._failed(number, name, error)
            return
        if number:
            self._send((number, None, (None, result)))

    def _failed(self, number: int, name: str, error: Exception) -> None:
        if not number or not isinstance(error, OpenClawError):
            logger.error("%s for another process failed", name, exc_info=error)
        if number:
            self._send((number, None, ((type(error), error.args, error.__dict__), None)))


def _error(kind: type[Exception], args: tuple[Any, ...], attributes: dict[str, Any]) -> Exception:
    """Return an error as it was raised; its class may take other arguments than it keeps."""
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(attributes)
    return error


async def answered_over(descriptor: int, functions: Mapping[str, Function]) -> None:
    """Answer with ``functions`` over the socket of ``descriptor`` until the other end is closed."""
    over = asyncio.Event()
    await Channel(functions, over.set).open(socket.socket(fileno=descriptor))
    await over.wait()
