"""The deltas of a reply, and the message that they add up to.

Guarantees: `MessageBuilder` is the only place where deltas become a message, so a streamed reply equals a whole one. It
owns the state of one reply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Content:
    """Visible text."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's thought."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A tool call begins; ``index`` counts the calls of the reply from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """The next piece of the JSON text of a call's arguments."""

    index: int
    text: str


Delta = Content | Reasoning | ToolCallStart | ToolCallArguments
CallId = Callable[[int], str]
"""Gives the id of a reply's tool call, by its number from 0."""


def merged(deltas: Sequence[Delta]) -> list[Delta]:
    """Return ``deltas`` with adjacent deltas of the same kind merged."""
    result: list[Delta] = []
    for delta in deltas:
        match (result[-1] if result else None, delta):
            case (Content(before), Content(text)):
                result[-1] = Content(before + text)
            case (Reasoning(before), Reasoning(text)):
                result[-1] = Reasoning(before + text)
            case (ToolCallArguments(index, before), ToolCallArguments(other, text)) if index == other:
                result[-1] = ToolCallArguments(index, before + text)
            case _:
                result.append(delta)
    return result


class MessageBuilder:
    """Builds an assistant message in OpenAI's format from deltas."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[tuple[ToolCallStart, list[str]]] = []

    def add(self, delta: Delta) -> None:
        """Add the next delta."""
        match delta:
            case Content(text):
                self._content.append(text)
            case Reasoning(text):
                self._reasoning.append(text)
            case ToolCallStart():
                self._calls.append((delta, []))
            case ToolCallArguments(index, text):
                self._calls[index][1].append(text)

    @property
    def has_tool_calls(self) -> bool:
        """Whether a tool call has begun."""
        return bool(self._calls)

    def message(self) -> dict[str, Any]:
        """Return the message so far."""
        content = "".join(self._content)
        message: dict[str, Any] = {"role": "assistant", "content": content if content or not self._calls else None}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": start.id,
                    "type": "function",
                    "function": {"name": start.name, "arguments": "".join(arguments)},
                }
                for start, arguments in self._calls
            ]
        return message
