"""A gateway worker that starts in a moment: it answers every connection with its process id, and ends when it is told to.

Started by `openclaw.runtime.workers` in place of the real one: ``python -m tests.helpers.light_worker NUMBER TOPK FD ...``.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

from groundwork.process import watch_lifeline
from openclaw.gateway.channel import Channel


async def main(descriptors: list[int]) -> None:
    """Serve until the leading process says so."""
    leader, *clients = (socket.socket(fileno=descriptor) for descriptor in descriptors)
    over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = str(os.getpid()).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    channel = Channel({"ping": lambda: None, "stop": over.set}, over.set)
    await channel.open(leader)
    await channel.ask("enter", "local")  # a request under way, which is given back when this process is gone
    await channel.ask("ready")
    servers = [await asyncio.start_server(answer, sock=sock) for sock in clients]
    await over.wait()
    for server in servers:
        server.close()


if __name__ == "__main__":
    watch_lifeline()
    asyncio.run(main([int(word) for word in sys.argv[3:]]))
