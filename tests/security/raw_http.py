"""HTTP by hand, for requests that no well-behaved client sends."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from tests.security.server import Server

READ_SECONDS = 10.0
PIECE = 1 << 16
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Raw:
    """An answer; status 0 if the server closed the connection without one."""

    status: int
    text: str

    @property
    def code(self) -> str | None:
        """The error's code, or None."""
        with suppress(ValueError, KeyError, TypeError):
            return json.loads(self.text)["error"]["code"]
        return None


def head(method: str, path: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return a request's head; nothing is added to ``headers``."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def request(server: Server, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Raw:
    """Send one request with just these headers, plus the length of the body, and return the answer."""
    lines = [*headers.items(), ("Content-Length", str(len(body))), ("Connection", "close")]
    return exchange(server, head(method, path, lines) + body)


def exchange(server: Server, data: bytes, seconds: float = READ_SECONDS) -> Raw:
    """Send bytes on a connection of their own and return the first answer."""
    with connected(server, seconds) as connection:
        with suppress(OSError):
            connection.sendall(data)
        return read_answer(connection)


@contextmanager
def connected(server: Server, seconds: float = READ_SECONDS) -> Iterator[socket.socket]:
    """Open a connection for the block."""
    connection = socket.create_connection(("127.0.0.1", server.port), seconds)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def many_connected(server: Server, count: int, data: bytes) -> Iterator[list[socket.socket]]:
    """Open ``count`` connections for the block and send the same bytes on each; refused ones are left out."""
    with ExitStack() as stack:
        connections: list[socket.socket] = []
        for _ in range(count):
            with suppress(OSError):
                connection = stack.enter_context(connected(server))
                connections.append(connection)
                connection.sendall(data)
        yield connections


def read_answer(connection: socket.socket) -> Raw:
    """Read one answer, or what there is when the server closes or is silent; return status and body."""
    received = bytearray()
    with suppress(OSError):
        while not _is_whole(received) and (piece := connection.recv(PIECE)):
            received += piece
    top, _, body = bytes(received).partition(b"\r\n\r\n")
    words = top.split(b" ", 2)
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    return Raw(status, body.decode(errors="replace"))


def _is_whole(received: bytearray) -> bool:
    top, end, body = bytes(received).partition(b"\r\n\r\n")
    length = LENGTH.search(top)
    return bool(end) and length is not None and len(body) >= int(length.group(1))


def is_closed(connection: socket.socket, seconds: float) -> bool:
    """Return whether the server answers or closes within ``seconds``."""
    connection.settimeout(seconds)
    try:
        connection.recv(PIECE)
    except TimeoutError:
        return False
    except OSError:
        return True
    return True
