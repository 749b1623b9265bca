"""Parses a model's output: streamed text in; reasoning, content and tool-call deltas out.

The stages of `ReplyParser`, in order: stop strings, reasoning, tool calls (`chat_codec.tool_calls`). `MessageBuilder` is the
only place where deltas become a message, so a streamed reply equals a whole one.

Guarantees: no delta is empty, and any split of the text gives the same merged deltas. Line breaks next to a thought's
tags belong to the format and are dropped, because the chat template adds them again; nothing else changes. Each parser
owns the state of one reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol


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


def held_back(text: str, tags: Sequence[str]) -> int:
    """Return the length of the longest suffix of ``text`` that is a proper prefix of a tag."""
    longest = min(len(text), max(map(len, tags), default=0) - 1)
    for length in range(longest, 0, -1):
        end = text[-length:]
        if any(len(tag) > length and tag.startswith(end) for tag in tags):
            return length
    return 0


class StopStrings:
    """Cuts a reply before its first stop string.

    Text that could begin a stop string is buffered; ``passed`` counts the released characters. Owns the state of one reply.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False
        self.matched = ""
        """The stop string that was found."""
        self.passed = 0

    def push(self, text: str) -> str:
        """Return the text that certainly comes before any stop string; nothing after the first one."""
        text = self._scan(text)
        self.passed += len(text)
        return text

    def _scan(self, text: str) -> str:
        if self.found or not self._stops:
            return "" if self.found else text
        text = self._held + text
        matches = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if matches:
            # Take the match that ends first, as if the text had arrived character by character.
            end, start = min(matches)
            self.found, self.matched, self._held = True, text[start:end], ""
            return text[:start]
        keep = held_back(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return the buffered text, unless a stop string ended the reply."""
        text, self._held = self._held, ""
        self.passed += len(text)
        return text


@dataclass(frozen=True)
class ReasoningFormat:
    """The tags of a thought.

    Attributes:
        open: opening tag.
        close: closing tag.
        begins_inside: whether a reply begins inside a thought even without an opening tag.
    """

    open: str = "<think>"
    close: str = "</think>"
    begins_inside: bool = False


class _State(Enum):
    START = auto()
    REASONING = auto()
    GAP = auto()
    CONTENT = auto()


class ReasoningParser:
    """Separates thought from answer in one reply."""

    def __init__(self, form: ReasoningFormat, *, inside: bool = False) -> None:
        """Start a reply; ``inside`` if the prompt ends in the opening tag.

        ``thought`` says whether the reply has a thought.
        """
        self._form = form
        self._state = _State.REASONING if inside else _State.START
        self._held = ""
        self._spoken = False
        self.thought = inside

    @property
    def thinking(self) -> bool:
        """Whether the next text may belong to a thought."""
        return self._state in (_State.START, _State.REASONING)

    def push(self, text: str) -> list[Content | Reasoning]:
        """Return the deltas of ``text``, the next piece."""
        text = self._held + text
        self._held = ""
        pieces: list[Content | Reasoning] = []
        if self._state is _State.START:
            text = self._open(text)
        if self._state is _State.REASONING:
            text = self._think(text, pieces)
        if self._state is _State.GAP:
            text = text.lstrip("\n")
            if text:
                self._state = _State.CONTENT
        if self._state is _State.CONTENT and text:
            pieces.append(Content(text))
        return pieces

    def finish(self) -> list[Content | Reasoning]:
        """Return the buffered rest; the reply is over."""
        text, self._held = self._held, ""
        if not text:
            return []
        return [Reasoning(text) if self._state is _State.REASONING else Content(text)]

    def _open(self, text: str) -> str:
        """Decide whether the reply begins with a thought; return the unread text."""
        start = text.lstrip()
        if start.startswith(self._form.open):
            self._state, self.thought = _State.REASONING, True
            return start[len(self._form.open) :]
        if self._form.open.startswith(start):
            self._held = text
            return ""
        self.thought = self._form.begins_inside
        self._state = _State.REASONING if self.thought else _State.CONTENT
        return text

    def _think(self, text: str, pieces: list[Content | Reasoning]) -> str:
        """Read the thought; return the text after its end."""
        if not self._spoken:
            text = text.lstrip("\n")
        thought, close, rest = text.partition(self._form.close)
        if close:
            self._state = _State.GAP
            thought = thought.rstrip("\n")
        else:
            certain = thought[: len(thought) - held_back(thought, (self._form.close,))].rstrip("\n")
            self._held = thought[len(certain) :]
            thought = certain
        if thought:
            self._spoken = True
            pieces.append(Reasoning(thought))
        return rest


class ToolParser(Protocol):
    """Separates tool calls from content in one reply; ``malformed`` counts unreadable calls."""

    malformed: int

    def push(self, text: str) -> list[Delta]: ...
    def finish(self) -> list[Delta]: ...


class ReplyParser:
    """Turns the text of a reply into deltas.

    Example:
        >>> parser = ReplyParser(reasoning=ReasoningFormat(), stops=["END"])
        >>> parser.push("<think>two and two</th") + parser.push("ink>4EN") + parser.push("D?") + parser.finish()
        [Reasoning(text='two and two'), Content(text='4')]
        >>> parser.stopped
        True
    """

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
    def stop_string(self) -> str | None:
        """The stop string that ended the reply, or None."""
        return self._stops.matched if self._stops.found else None

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
