"""What an agent may do in a shell task: two OpenAI tools, and how their calls are read.

An action is ``{"tool": NAME, "arguments": {...}}``, or ``{"text": TEXT}``: a reply without a call, which ends the episode.
Guarantee: a call that makes no sense is an `InvalidError` whose text tells the agent what to write.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.exceptions import InvalidError
from agentrl.protocol import JsonObject

LONGEST_COMMAND_S = 600
SYSTEM = (
    "You solve a task in a Linux machine without a network, through the tools bash and write_file. Every command starts "
    "in the working directory /work. Carry the task out with the tools, and check the result. A reply without a tool "
    "call ends the task."
)
HOW = "call bash with a command, or write_file with a path and content; a reply without a tool call ends the task"


class Arguments(BaseModel):
    """Arguments of a tool; anything else is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)


class Bash(Arguments):
    """Run a command line with bash. You see its output and its exit code."""

    command: Annotated[str, Field(min_length=1, max_length=100_000, description="the command line")]
    timeout_s: Annotated[
        float, Field(gt=0, le=LONGEST_COMMAND_S, description=f"most seconds, up to {LONGEST_COMMAND_S}; default 30")
    ] = 30.0


class WriteFile(Arguments):
    """Write a text file, and the folders above it."""

    path: Annotated[
        str, Field(min_length=1, max_length=1000, description="below /work or /tmp; a relative one is below /work")
    ]
    content: Annotated[str, Field(max_length=1_000_000, description="the whole text of the file")]


Call = Bash | WriteFile
CALLS: Mapping[str, type[Call]] = MappingProxyType({"bash": Bash, "write_file": WriteFile})


def tools() -> list[JsonObject]:
    """Return the tools in OpenAI's format."""
    return [openai_tool(name, kind) for name, kind in CALLS.items()]


T = TypeVar("T", bound=BaseModel)


def read_call(action: JsonObject) -> Call | None:
    """Return the call of an action; see `read_call_of`."""
    return read_call_of(action, CALLS, HOW)


def read_call_of(action: JsonObject, calls: Mapping[str, type[T]], how: str) -> T | None:
    """Return the call of an action, or None if the agent says that it has ended.

    Args:
        action: of the agent.
        calls: arguments of each tool.
        how: ends an error: what to write.

    Raises:
        InvalidError: the tool is unknown or an argument is wrong; it says what to write.
    """
    if set(action) == {"text"}:
        return None
    name, arguments = action.get("tool"), action.get("arguments")
    if set(action) != {"tool", "arguments"} or not isinstance(name, str):
        raise InvalidError(f'an action is {{"tool": NAME, "arguments": {{...}}}}; {how}', code="invalid_action")
    if (kind := calls.get(name)) is None:
        raise InvalidError(f"there is no tool {name!r}; {how}", code="unknown_tool")
    try:
        return kind.model_validate(arguments)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'it'}: {item['msg']}" for item in error.errors())
        raise InvalidError(f"the arguments of {name} are wrong: {problems}; {how}", code="invalid_arguments") from None


def openai_tool(name: str, kind: type[BaseModel]) -> JsonObject:
    """Return a tool in OpenAI's format, with what a model needs of its arguments' schema.

    Args:
        name: of the tool.
        kind: its arguments, each with a plain type and a description; its docstring describes the tool.
    """
    schema = kind.model_json_schema()
    properties: JsonObject = {
        item: {"type": result["type"], "description": result["description"]}
        for item, result in schema["properties"].items()
    }
    parameters: JsonObject = {"type": "object", "properties": properties, "required": schema["required"]}
    return {
        "type": "function",
        "function": {"name": name, "description": kind.__doc__, "parameters": parameters},
    }
