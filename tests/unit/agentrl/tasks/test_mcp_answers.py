"""What an MCP server may answer, over the SDK's own client: text reaches the agent, anything odd is an error of the call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentrl.exceptions import InfraError, InvalidError
from agentrl.tasks.toolcall.tools.mcp import MAX_SHOWN, McpConnection, lines_transport

pytest.importorskip("mcp")
Answer = Callable[[str, Any], Any]
TOOL = {"name": "look", "description": "Look.", "inputSchema": {"type": "object"}}
TEXT = {"type": "text", "text": "plain"}


@asynccontextmanager
async def server_of(results: dict[str, Any]) -> AsyncIterator[McpConnection]:
    """Yield a connection to a server that answers each method with its result; None ends it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            asked = json.loads(line)
            if "id" not in asked:
                continue
            if asked["method"] == "initialize":
                result: Any = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}}
                result["serverInfo"] = {"name": "s", "version": "1"}
            elif asked["method"] not in results:
                missing = {"code": -32601, "message": "no such method"}
                writer.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": missing}).encode() + b"\n")
                continue
            else:
                result = results[asked["method"]]
            if result is None:
                break
            writer.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode() + b"\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 26)
    pipes = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=1 << 26)
    connection = McpConnection("s", 60.0)
    await connection.open(lines_transport(*pipes))
    try:
        yield connection
    finally:
        await connection.close()
        pipes[1].close()
        server.close()


async def answered(result: Any, **tool: Any) -> str:
    async with server_of({"tools/list": {"tools": [TOOL | tool]}, "tools/call": result}) as connection:
        [found] = await connection.tools(None, None)
        return await connection.call(found.name, {})


def resource(**content: Any) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": "file:///a.txt", **content}}


@pytest.mark.parametrize(
    ("result", "seen"),
    [
        ({"content": [TEXT]}, "plain"),
        ({"content": [resource(mimeType="text/plain", text="file content")]}, "file content"),
        ({"content": [resource(text="")]}, ""),
        ({"content": [TEXT, resource(text="a"), resource(text="b")]}, "plain\na\nb"),
        ({"content": [resource(mimeType="image/png", blob="AAAA")]}, "[resource file:///a.txt image/png]"),
        ({"content": [{"type": "resource_link", "uri": "file:///b", "name": "b"}]}, "[resource_link file:///b]"),
        ({"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}, "[image image/png]"),
        ({"content": [{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}]}, "[audio audio/wav]"),
        ({"content": []}, ""),
        ({"content": [], "structuredContent": {"a": 1}}, '{"a": 1}'),
        ({"content": [TEXT], "structuredContent": {"a": 1}}, "plain"),
    ],
)
async def test_a_result_is_seen_as_text(result: dict[str, Any], seen: str) -> None:
    assert await answered(result) == seen


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"content": [{"type": "hologram", "data": "x"}]}, "look answered with what is not a result of a tool"),
        ({}, "look answered with what is not a result of a tool"),
        ({"content": "text"}, "look answered with what is not a result of a tool"),
        ({"content": [TEXT], "isError": True}, "plain"),
        ({"content": [], "isError": True}, "look failed"),
    ],
)
async def test_an_odd_result_is_an_error_that_the_agent_sees(result: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidError, match=says) as raised:
        await answered(result)
    assert "\n" not in raised.value.message


async def test_a_result_is_not_held_against_the_server_s_own_schema() -> None:
    """It would be in the event loop, where a pattern may take for ever."""
    slow = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    result = {"content": [], "structuredContent": {"a": "a" * 40 + "!"}}
    assert "aaaa" in await asyncio.wait_for(answered(result, outputSchema=slow), 30)


@pytest.mark.parametrize("key", ["text", "structured"])
async def test_a_long_result_is_cut(key: str) -> None:
    text = "x" * 2_000_000
    result = (
        {"content": [{"type": "text", "text": text}]}
        if key == "text"
        else {"content": [], "structuredContent": {"a": text}}
    )
    seen = await answered(result)
    assert len(seen) < MAX_SHOWN + 100
    assert "characters are left out" in seen


@pytest.mark.parametrize("listed", [{"tools": [{"name": "look"}]}, {"tools": "none"}, {}, None])
async def test_a_server_without_a_list_of_tools_is_a_failure_of_the_infrastructure(listed: Any) -> None:
    async with server_of({"tools/list": listed}) as connection:
        with pytest.raises(InfraError, match="the MCP server s"):
            await connection.tools(None, None)


async def test_a_server_lost_in_a_call_is_a_failure_of_the_infrastructure() -> None:
    with pytest.raises(InfraError, match="the MCP server s"):
        await answered(None)
