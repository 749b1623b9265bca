"""The tools of one episode: checks a call, and carries it out.

Guarantees: a tool gets arguments that fit its JSON schema. An unknown tool, arguments that do not fit, and a tool's own error are an `InvalidError`, which
the agent sees as a structured error. A schema that refers to a file or a URL is never followed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from typing import Any

from agentrl.exceptions import InvalidError
from agentrl.protocol import JsonObject
from agentrl.sandbox.interface import Door, Limits, SandboxSpec
from agentrl.sandbox.streams import SandboxStream
from agentrl.tasks.toolcall.config import McpServer, ToolConfig
from agentrl.tasks.toolcall.schemas import check_foreign_schema, problems_of
from agentrl.tasks.toolcall.secret_files import covers
from agentrl.tasks.toolcall.tools.interface import Room, Tool, World, described
from agentrl.tasks.toolcall.tools.mcp import McpConnection, lines_transport
from groundwork.exceptions import ConfigError

LIMITS: Mapping[Room, Limits] = {
    "code": Limits(memory_mib=512, cpus=1.0, processes=64, disk_mib=64),
    "sql": Limits(memory_mib=128, cpus=1.0, processes=16, disk_mib=32),
    "tools": Limits(memory_mib=512, cpus=1.0, processes=128, disk_mib=64),
}
MAX_EPISODE_SECONDS = 7200.0


class Toolbox:
    """The tools of one episode; call `prepare`, then `open` once its world has sandboxes, and `close` in the end."""

    def __init__(self, config: ToolConfig, names: Collection[str], pool: str) -> None:
        """Prepare.

        Args:
            config: of the pool.
            names: built-in tools that the task has.
            pool: name of the pool.

        Raises:
            InvalidError: the configuration lacks a tool of the task.
        """
        if missing := [name for name in names if name not in config.builtin]:
            raise InvalidError(
                f"the task needs {', '.join(missing)}, which TOOLS_CONFIG does not have; add it there, or choose another task",
                code="needs_tool",
            )
        self._config = config
        self._tools: dict[str, Tool] = {name: config.builtin[name] for name in names} | dict(config.own)
        self._pool = pool
        self._streams: dict[int, SandboxStream] = {}
        self._doors: list[Door] = []
        self._closing = AsyncExitStack()

    async def prepare(self) -> None:
        """Open what the sandboxes need before they start."""
        for number, server in enumerate(self._config.servers):
            if server.command:
                stream = self._streams[number] = SandboxStream(number, self._pool)
                self._closing.push_async_callback(stream.close)
                self._doors.append(await stream.open())

    def spec(self, room: Room) -> SandboxSpec:
        """Return the sandbox of a room.

        Raises:
            ConfigError: a folder of tools has too many files.
        """
        if room != "tools":
            return SandboxSpec(limits=LIMITS[room])
        mounts = [*self._config.mounts, *covers(self._config.folders)]
        return SandboxSpec(limits=LIMITS[room], mounts=mounts, doors=self._doors)

    async def open(self, world: World) -> None:
        """Connect to the MCP servers.

        Raises:
            ConfigError: the SDK is missing, or a server's tools do not fit the configuration.
            InfraError: a server does not start.
        """
        for number, server in enumerate(self._config.servers):
            await self._connect(server, world, self._streams.get(number))

    @property
    def described(self) -> list[JsonObject]:
        """The tools in OpenAI's format."""
        return [described(tool) for tool in self._tools.values()]

    async def call(self, name: str, arguments: Any, world: World) -> str:
        """Return what a call led to.

        Raises:
            InvalidError: it makes no sense, or the tool says that it failed.
            InfraError: the sandbox or server of the tool failed.
        """
        tool = self._tools.get(name)
        if tool is None:
            raise InvalidError(
                f"there is no tool {name[:64]!r}; there are {', '.join(self._tools)}", code="unknown_tool"
            )
        if problems := await problems_of(tool.parameters, arguments):
            raise InvalidError(f"the arguments of {name} are wrong: {'; '.join(problems)}", code="invalid_arguments")
        return await tool.call(arguments, world)

    async def close(self) -> None:
        """Leave the servers; a second call does nothing."""
        await self._closing.aclose()

    async def _connect(self, server: McpServer, world: World, stream: SandboxStream | None) -> None:
        declared = server.declared
        connection = McpConnection(server.label, declared.timeout_s)
        self._closing.push_async_callback(connection.close)
        if stream is not None:
            sandbox = await world.sandbox("tools")
            pipes = await stream.start(sandbox, [*server.command], declared.env, MAX_EPISODE_SECONDS)
            await connection.open(lines_transport(*pipes))
        else:
            assert declared.url is not None
            await connection.open(declared.url)
        allow = None if declared.allow is None else frozenset(declared.allow)
        for tool in await connection.tools(allow, "tools" if server.command else None):
            if tool.name in self._tools:
                raise ConfigError(f"the MCP server {server.label} has a tool {tool.name}, which there is already")
            await check_foreign_schema(f"the tool {tool.name} of the MCP server {server.label}", tool.parameters)
            self._tools[tool.name] = tool
