"""What a tool is, and the episode that it acts in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pydantic import JsonValue

from agentrl.protocol import JsonObject
from agentrl.sandbox.interface import Sandbox
from agentrl.tasks.toolcall.draft import Tables

Room = Literal["code", "sql", "tools"]
"""Which sandbox of an episode: programs of the agent's, SQL on the task's tables, tools of the configuration."""


@dataclass
class World:
    """One episode, as tools see it.

    Attributes:
        store: the key-value store.
        tables: as they were in the beginning; `agentrl.tasks.toolcall.tools.sql` changes its own copy of them.
        start: starts the sandbox of a room.
        rooms: sandboxes that have been started.
    """

    store: dict[str, JsonValue]
    tables: Tables
    start: Callable[[Room], Awaitable[Sandbox]]
    rooms: dict[Room, Sandbox] = field(default_factory=dict[Room, Sandbox])
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def sandbox(self, room: Room) -> Sandbox:
        """Return the sandbox of a room, started on the first call.

        Raises:
            InfraError: it does not start.
        """
        async with self._starting:
            if room not in self.rooms:
                self.rooms[room] = await self.start(room)
            return self.rooms[room]


class Tool(Protocol):
    """One tool.

    Attributes:
        name: that a call gives.
        description: for the model.
        parameters: JSON schema of the arguments.
        room: the sandbox that it needs, if any.
    """

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> JsonObject: ...
    @property
    def room(self) -> Room | None: ...

    async def call(self, arguments: JsonObject, world: World) -> str:
        """Return what the agent sees.

        Args:
            arguments: that fit `parameters`.
            world: the episode.

        Raises:
            InvalidError: the call makes no sense; it says what to write.
            InfraError: the sandbox or the server of the tool failed.
        """
        ...


def described(tool: Tool) -> JsonObject:
    """Return a tool in OpenAI's format."""
    function: JsonObject = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def parameters(properties: Mapping[str, tuple[str, str]], optional: Sequence[str] = ()) -> JsonObject:
    """Return the schema of an object.

    Args:
        properties: type and description of each.
        optional: those that may be missing.
    """
    return {
        "type": "object",
        "properties": {name: {"type": kind, "description": text} for name, (kind, text) in properties.items()},
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


def shown(value: JsonValue) -> str:
    """Return a value as the agent sees it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def clipped(text: str, most: int) -> str:
    """Return a text, with a note in place of its middle if it has more than ``most`` characters."""
    if len(text) <= most:
        return text
    head = most // 2
    left_out = len(text) - most
    return f"{text[:head]}\n[{left_out} characters are left out]\n{text[len(text) - (most - head) :]}"
