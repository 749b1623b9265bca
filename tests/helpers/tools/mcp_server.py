"""A real MCP server: over stdio, or over streamable HTTP with ``http`` as its argument; then it prints its port."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("test")
counted = 0


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def count() -> int:
    """Count the calls of this session's process."""
    global counted
    counted += 1
    return counted


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("it broke")


@server.tool()
def leave() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
def hang() -> str:
    """Take very long."""
    time.sleep(600)
    return ""


async def serve_http() -> None:
    """Serve until killed."""
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    await uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="warning")).serve(sockets=[listening])


if __name__ == "__main__":
    if sys.argv[1:] == ["http"]:
        asyncio.run(serve_http())
    else:
        server.run()
