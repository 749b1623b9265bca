"""Leads loopback ports of the sandbox to Unix sockets of the host.

Guarantees: bytes pass as they come, in both directions, with bounded memory per connection; a half-closed connection stays
half open. It is a fork of the supervisor, and as hard to reach.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress

CHUNK = 1 << 16


def forward(doors: Mapping[socket.socket, str]) -> None:
    """Forward the connections of each listening socket to a Unix socket, for ever."""
    import asyncio  # here, because a sandbox without doors starts faster without it

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    async def serve(listening: socket.socket, path: str) -> None:
        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                far_reader, far_writer = await asyncio.open_unix_connection(path)
            except OSError:
                writer.close()
                return
            back = asyncio.ensure_future(pump(far_reader, writer))
            there = asyncio.ensure_future(pump(reader, far_writer))
            await asyncio.wait({back, there})
            for item in (writer, far_writer):
                item.close()

        listening.setblocking(False)
        server = await asyncio.start_server(connect, sock=listening)
        await server.serve_forever()

    async def serve_all() -> None:
        await asyncio.gather(*(serve(listening, path) for listening, path in doors.items()))

    asyncio.run(serve_all())
