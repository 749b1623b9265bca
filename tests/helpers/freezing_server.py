"""A stand-in for the runtime process: ``freezing_server.py PORT REQUESTS_FILE HOW_SLOW``; freezes on GET /freeze.

Every start after the first is healthy: the file of requests tells them apart.
"""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
from pathlib import Path

from groundwork.process import watch_lifeline
from openclaw.gateway.under_way import InFlightRegistry


def freeze() -> None:
    """Keep the event loop for ever."""
    while True:
        pass


async def main(port: int, path: Path, seconds: float) -> None:
    slots = InFlightRegistry(path)
    slots.begin("req-finished", "laptop", "GET", "/v1/models")
    slots.end(0)
    slots.begin("req-frozen", "laptop", "POST", "/v1/chat/completions")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if b"/freeze" in request:
            freeze()
        await asyncio.sleep(seconds)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    watch_lifeline()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])))
