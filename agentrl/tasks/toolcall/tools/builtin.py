"""The tools that compute in this process: calculator, store and tables. They run nothing of the agent's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

from pydantic import JsonValue

from agentrl.exceptions import InvalidError
from agentrl.protocol import JsonObject
from agentrl.tasks.toolcall.tools.calculator import calculate
from agentrl.tasks.toolcall.tools.interface import World, parameters, shown

MOST_KEYS = 1000
MOST_VALUE = 1000
"""Characters of a key, and of a value."""
MOST_ROWS = 20
"""Rows that a look-up shows."""


@dataclass(frozen=True)
class Pure:
    """A tool that is a function of its arguments and the world."""

    name: str
    description: str
    parameters: JsonObject
    function: Callable[[JsonObject, World], str]
    room: None = None

    async def call(self, arguments: JsonObject, world: World) -> str:
        """See `agentrl.tasks.toolcall.tools.interface.Tool`."""
        return self.function(arguments, world)


def _calculator(arguments: JsonObject, world: World) -> str:
    return calculate(str(arguments["expression"]))


def _get(arguments: JsonObject, world: World) -> str:
    return shown(world.store[_known(arguments, world)])


def _set(arguments: JsonObject, world: World) -> str:
    key, value = str(arguments["key"]), cast(JsonValue, arguments["value"])
    if len(key) > MOST_VALUE or len(shown(value)) > MOST_VALUE:
        raise InvalidError(f"a key and a value have at most {MOST_VALUE} characters", code="too_large")
    if key not in world.store and len(world.store) >= MOST_KEYS:
        raise InvalidError(f"the store holds at most {MOST_KEYS} keys", code="too_large")
    world.store[key] = value
    return "ok"


def _delete(arguments: JsonObject, world: World) -> str:
    del world.store[_known(arguments, world)]
    return "ok"


def _keys(arguments: JsonObject, world: World) -> str:
    return shown([*sorted(world.store)])


def _lookup(arguments: JsonObject, world: World) -> str:
    rows = world.tables.get(str(arguments["table"]))
    if rows is None:
        raise InvalidError(f"there is no such table; there are {', '.join(world.tables) or 'none'}", code="no_table")
    column, value = str(arguments["column"]), shown(arguments["value"])
    if rows and column not in rows[0]:
        raise InvalidError(f"there is no such column; there are {', '.join(rows[0])}", code="no_column")
    found: list[JsonValue] = [{**row} for row in rows if shown(row[column]) == value]
    return shown(found[:MOST_ROWS]) if found else "no row"


def _known(arguments: JsonObject, world: World) -> str:
    key = str(arguments["key"])
    if key not in world.store:
        raise InvalidError(f"there is no key {key!r}", code="no_key")
    return key


_VALUE: JsonObject = {"type": ["string", "number"], "description": "the value"}
_KEY: JsonObject = {"type": "string", "description": "the key"}


def _object(**properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": {**properties}, "required": [*properties], "additionalProperties": False}


PURE: Mapping[str, Pure] = MappingProxyType(
    {
        tool.name: tool
        for tool in (
            Pure(
                "calculator",
                "Compute an expression.",
                parameters({"expression": ("string", "such as 2 * (3 + 4)")}),
                _calculator,
            ),
            Pure("store_get", "Read a key of the store.", _object(key=_KEY), _get),
            Pure("store_set", "Set a key of the store.", _object(key=_KEY, value=_VALUE), _set),
            Pure("store_delete", "Delete a key of the store.", _object(key=_KEY), _delete),
            Pure("store_keys", "List the keys of the store.", _object(), _keys),
            Pure(
                "table_lookup",
                "Find the rows of a table with a value in a column.",
                _object(
                    table={"type": "string", "description": "the table"},
                    column={"type": "string", "description": "the column"},
                    value={"type": ["string", "number"], "description": "the value to find"},
                ),
                _lookup,
            ),
        )
    }
)
