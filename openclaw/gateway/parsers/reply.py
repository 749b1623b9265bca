"""The parsers of one reply, in order: stop strings, reasoning, tool calls.

Guarantees: no delta is empty, and any split of the text gives the same merged deltas. Owns the state of one reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from openclaw.gateway.parsers.deltas import Content, Delta, Reasoning
from openclaw.gateway.parsers.reasoning import ReasoningFormat, ReasoningParser
from openclaw.gateway.parsers.scan import StopStrings


class ToolParser(Protocol):
    """Separates tool calls from content in one reply; ``malformed`` counts unreadable calls."""

    malformed: int

    def push(self, text: str) -> list[Delta]: ...
    def finish(self) -> list[Delta]: ...


class ReplyParser:
    """Turns the text of a reply into deltas."""

    def __init__(
        self,
        *,
        reasoning: ReasoningFormat | None = None,
        tools: ToolParser | None = None,
        inside_reasoning: bool = False,
        stops: Sequence[str] = (),
    ) -> None:
        """Start a reply.

        Args:
            reasoning: the format of thoughts, or None.
            tools: the parser of tool calls, or None.
            inside_reasoning: whether the prompt ends in the opening tag of a thought.
            stops: the request's stop strings.
        """
        self._stops = StopStrings(stops)
        self._reasoning = ReasoningParser(reasoning, inside=inside_reasoning) if reasoning else None
        self._tools = tools

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the reply."""
        return self._stops.found

    @property
    def passed(self) -> int:
        """The number of characters that certainly come before any stop string."""
        return self._stops.passed

    @property
    def thinking(self) -> bool:
        """Whether the next token may belong to a thought."""
        return self._reasoning is not None and self._reasoning.thinking

    @property
    def thought(self) -> bool:
        """Whether the reply has a thought."""
        return self._reasoning is not None and self._reasoning.thought

    @property
    def malformed(self) -> int:
        """The number of tool calls that are unreadable or cut short."""
        return self._tools.malformed if self._tools else 0

    def push(self, text: str) -> list[Delta]:
        """Return the deltas of ``text``, the next piece."""
        return self._read(self._stops.push(text))

    def finish(self) -> list[Delta]:
        """Return the buffered rest; the reply is over."""
        deltas = self._read(self._stops.finish())
        if self._reasoning:
            deltas += self._route(self._reasoning.finish())
        if self._tools:
            deltas += self._tools.finish()
        return deltas

    def _read(self, text: str) -> list[Delta]:
        if not text:
            return []
        return self._route(self._reasoning.push(text) if self._reasoning else [Content(text)])

    def _route(self, pieces: Iterable[Content | Reasoning]) -> list[Delta]:
        deltas: list[Delta] = []
        for piece in pieces:
            if isinstance(piece, Content) and self._tools:
                deltas.extend(self._tools.push(piece.text))
            else:
                deltas.append(piece)
        return deltas
