"""The tools of an MCP server, by the MCP SDK (extra ``tools``).

A server with a command runs in the episode's ``tools`` sandbox and speaks over its stdin and stdout. A server with a URL runs elsewhere; the URL
must be allowed by ``TOOLCALL_ALLOWED_URLS``. Guarantees: nothing that a server says is run here. A server that refuses a call is an error that the
agent sees, and so is an answer that is not a result of a tool. One that is lost, or whose list of tools is none, is an `InfraError`.
"""

from __future__ import annotations

import asyncio
import json
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl.exceptions import InfraError, InvalidError
from agentrl.protocol import JsonObject
from agentrl.tasks.toolcall.tools.interface import Room, World, clipped
from groundwork.exceptions import ConfigError

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult

CONNECT_SECONDS = 60.0
LISTING_SECONDS = 60.0
"""Seconds of all pages of a server's list together."""
MAX_PAGES = 50
MAX_SHOWN = 8192
MAX_REASON = 300
MAX_TOOLS = 200
MISSING = "MCP tools need the MCP SDK; install it with: pip install 'mcp>=2.3,<3'"
Transport = AbstractAsyncContextManager[Any]


@dataclass(frozen=True)
class McpTool:
    """One tool of a connected server."""

    name: str
    description: str
    parameters: JsonObject
    connection: McpConnection
    room: Room | None = None

    async def call(self, arguments: JsonObject, world: World) -> str:
        """See `agentrl.tasks.toolcall.tools.interface.Tool`."""
        return await self.connection.call(self.name, arguments)


class McpConnection:
    """A session with one server, owned by a task of its own from `open` to `close`."""

    def __init__(self, label: str, seconds: float) -> None:
        """Prepare.

        Args:
            label: of the server, for messages.
            seconds: time limit of a call.
        """
        self._label, self._seconds = label, seconds
        self._client: Client | None = None
        self._stop = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None

    async def open(self, server: Transport | str) -> None:
        """Connect to a server: the streams to it, or its URL.

        Raises:
            ConfigError: the SDK is missing.
            InfraError: the server does not answer.
        """
        client_of()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(server, ready))
        await asyncio.wait({self._owner, ready}, timeout=CONNECT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            problem = self._owner.exception() if self._owner.done() else None
            await self.close()
            reason = _reason(problem) if problem else f"no answer within {CONNECT_SECONDS:g} s"
            raise InfraError(f"the MCP server {self._label} does not start: {reason}", code="mcp_failed") from problem

    async def tools(self, allow: frozenset[str] | None, room: Room | None) -> list[McpTool]:
        """Return the server's tools; with ``allow`` only those of these names.

        Raises:
            ConfigError: ``allow`` names a tool that the server does not have, or it has no end of tools or pages.
            InfraError: the server is lost, or takes longer than `LISTING_SECONDS`.
        """
        try:
            async with asyncio.timeout(LISTING_SECONDS):
                values = await self._listed(room)
        except TimeoutError as error:
            raise InfraError(
                f"the MCP server {self._label} does not list its tools in time", code="mcp_failed"
            ) from error
        if allow is None:
            return [*values.values()]
        if missing := sorted(allow - values.keys()):
            raise ConfigError(
                f"the MCP server {self._label} has no tool {', '.join(missing)}; it has {', '.join(sorted(values)) or 'none'}"
            )
        return [tool for name, tool in values.items() if name in allow]

    async def _listed(self, room: Room | None) -> dict[str, McpTool]:
        """Return all tools by name, page by page."""
        mcp_tools: dict[str, McpTool] = {}
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            try:
                page = await self._asked("list_tools", cursor=cursor)
            except _odd_answers() as error:
                reason = _first_line(error)
                raise InfraError(
                    f"the MCP server {self._label} does not list its tools: {reason}", code="mcp_failed"
                ) from error
            for tool in page.tools:
                mcp_tools[tool.name] = McpTool(tool.name, tool.description or tool.name, tool.input_schema, self, room)
            if len(mcp_tools) > MAX_TOOLS:
                raise ConfigError(f"the MCP server {self._label} lists more than {MAX_TOOLS} tools; offer fewer")
            cursor = page.next_cursor
            if cursor is None:
                return mcp_tools
        raise ConfigError(
            f"the MCP server {self._label} lists tools without an end: {MAX_PAGES} pages have {len(mcp_tools)} of them"
        )

    async def call(self, name: str, arguments: JsonObject) -> str:
        """Return what a tool answered, as text.

        Raises:
            InvalidError: the server refuses the call, or takes too long.
            InfraError: the server is lost.
        """
        import anyio
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED

        try:
            result = await self._asked("call_tool", name, arguments)
        except TimeoutError:
            raise InvalidError(f"{name} took more than {self._seconds:g} s", code="tool_timeout") from None
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise InfraError(f"the MCP server {self._label} ended", code="mcp_failed") from error
            raise InvalidError(f"{name}: {error}", code="tool_error") from None
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            raise InfraError(f"the MCP server {self._label} ended", code="mcp_failed") from error
        except _odd_answers() as error:
            raise InvalidError(
                f"{name} answered with what is not a result of a tool: {_first_line(error)}", code="tool_error"
            ) from None
        text = "\n".join(map(_text, result.content))
        if not text and result.structured_content is not None:
            text = json.dumps(result.structured_content, ensure_ascii=False)
        text = clipped(text, MAX_SHOWN)
        if result.is_error:
            raise InvalidError(text or f"{name} failed", code="tool_error")
        return text

    async def close(self) -> None:
        """End the session; a second call does nothing."""
        self._stop.set()
        if self._owner is not None:
            with suppress(BaseException):
                await asyncio.wait_for(asyncio.shield(self._owner), CONNECT_SECONDS)
            self._owner.cancel()
            self._owner = None

    async def _asked(self, method: str, *values: Any, **named: Any) -> Any:
        """Call a method of the client; it fails at once if the session ends meanwhile."""
        if self._client is None or self._owner is None or self._owner.done():
            raise InfraError(f"the MCP server {self._label} is gone", code="mcp_failed")
        asked = asyncio.ensure_future(getattr(self._client, method)(*values, **named))
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.wait({asked, self._owner}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise InfraError(f"the MCP server {self._label} ended", code="mcp_failed")
            return asked.result()
        finally:
            asked.cancel()

    async def _own(self, server: Transport | str, ready: asyncio.Future[None]) -> None:
        async with client_of()(server) as self._client:
            # The SDK would check a result against the server's own schema in the event loop, where a pattern may take for ever.
            self._client.session.validate_tool_result = _unchecked
            ready.set_result(None)
            await self._stop.wait()


def client_of() -> type[Client]:
    """Return the SDK's client.

    Raises:
        ConfigError: the SDK is missing.
    """
    try:
        from mcp import Client
    except ImportError:
        raise ConfigError(MISSING) from None
    return Client


@asynccontextmanager
async def lines_transport(reader: StreamReader, writer: StreamWriter) -> AsyncIterator[Any]:
    """Yield the SDK's two streams over lines of JSON, as an MCP server's stdout and stdin have them."""
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    heard_in, heard = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    said, said_out = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with heard_in:
            with suppress(OSError, ValueError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                while line := await reader.readline():
                    try:
                        message: SessionMessage | Exception = SessionMessage(
                            jsonrpc_message_adapter.validate_json(line, by_name=False)
                        )
                    except ValueError as error:
                        message = error
                    await heard_in.send(message)

    async def write() -> None:
        async with said_out:
            with suppress(OSError):
                async for message in said_out:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    writer.write(text.encode() + b"\n")
                    await writer.drain()

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(write)
        try:
            yield heard, said
        finally:
            heard.close()
            said.close()
            group.cancel_scope.cancel()


def _text(content: Any) -> str:
    """Return a content block as text; what is not text is named with its address and type, as far as it has them."""
    if content.type == "text":
        return content.text
    source = content.resource if content.type == "resource" else content
    if isinstance(text := getattr(source, "text", None), str):
        return text
    facts = (getattr(source, "uri", None), getattr(source, "mime_type", None))
    return f"[{' '.join([content.type, *(str(fact) for fact in facts if fact)])}]"


def _odd_answers() -> tuple[type[Exception], ...]:
    """Return what the SDK raises for an answer that it cannot read; a lost server is known before."""
    import anyio
    from mcp import MCPError

    return (
        MCPError,
        ValueError,
        RuntimeError,
        LookupError,
        TypeError,
        anyio.ClosedResourceError,
        anyio.BrokenResourceError,
    )


async def _unchecked(name: str, result: CallToolResult) -> None:
    """Accept a result as it is."""


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:MAX_REASON]


def _reason(error: BaseException) -> str:
    """Return the first error in a group of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
