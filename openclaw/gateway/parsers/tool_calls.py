"""Qwen's tool-call format: `<tool_call>`, an object with ``name`` and ``arguments``, `</tool_call>`, any number of times.

Guarantees: any split of the text gives the same deltas once merged, call ids apart. The name leaves as soon as it is
known, the arguments as they are generated, in the model's own JSON text. A block that is no tool call is given back as
content, tags included, and counted in ``malformed``; arguments that end too early are delivered as far as they came and
counted too.
"""

from __future__ import annotations

import json
import re
from enum import Enum, auto

from openclaw.gateway.parsers.deltas import Content, Delta, ToolCallArguments, ToolCallStart, new_tool_call_id
from openclaw.gateway.parsers.scan import held_back

OPEN, CLOSE = "<tool_call>", "</tool_call>"
# The name has no "<", so that a closing tag is never read as part of it.
HEADER = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\<]+)"\s*,\s*"arguments"\s*:\s*(?=\{)')


class _State(Enum):
    TEXT = auto()
    HEADER = auto()
    ARGUMENTS = auto()
    TAIL = auto()


class ToolCallParser:
    """Separates tool calls from content in one reply."""

    def __init__(self) -> None:
        self.malformed = 0
        self._state = _State.TEXT
        self._buffer = ""
        self._calls = 0
        self._after_call = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def push(self, text: str) -> list[Delta]:
        """Return what ``text`` adds."""
        deltas: list[Delta] = []
        self._buffer += text
        steps = {
            _State.TEXT: self._read_text,
            _State.HEADER: self._read_header,
            _State.ARGUMENTS: self._read_arguments,
            _State.TAIL: self._read_tail,
        }
        while steps[self._state](deltas):
            continue
        return deltas

    def finish(self) -> list[Delta]:
        """Return what was held back; the reply is over."""
        text, self._buffer = self._buffer, ""
        if self._state is _State.ARGUMENTS:
            self.malformed += 1
        if self._state is _State.HEADER:
            return self._whole_call(text, closing="")
        return [Content(text)] if self._state is _State.TEXT and text else []

    def _read_text(self, deltas: list[Delta]) -> bool:
        """Emit content up to the next call; line breaks before a call belong to the format."""
        if self._after_call:
            self._buffer = self._buffer.lstrip()
        content, tag, rest = self._buffer.partition(OPEN)
        if tag:
            content = content.rstrip("\n")
            self._state, self._buffer = _State.HEADER, rest
        else:
            certain = content[: len(content) - held_back(content, (OPEN,))].rstrip("\n")
            self._buffer = content[len(certain) :]
            content = certain
        if content:
            self._after_call = False
            deltas.append(Content(content))
        return bool(tag)

    def _read_header(self, deltas: list[Delta]) -> bool:
        """Wait for the name, or for the end of the block when it is written in another order."""
        match = HEADER.match(self._buffer)
        if match:
            deltas.append(self._start(match.group(1)))
            self._buffer = self._buffer[match.end() :]
            self._state, self._depth, self._in_string, self._escaped = _State.ARGUMENTS, 0, False, False
            return True
        body, tag, rest = self._buffer.partition(CLOSE)
        if not tag:
            return False
        deltas.extend(self._whole_call(body, closing=CLOSE))
        self._state, self._buffer = _State.TEXT, rest
        return True

    def _read_arguments(self, deltas: list[Delta]) -> bool:
        """Emit the JSON object of the arguments up to its end."""
        end = self._end_of_object(self._buffer)
        text = self._buffer if end is None else self._buffer[:end]
        self._buffer = self._buffer[len(text) :]
        if text:
            deltas.append(ToolCallArguments(self._calls - 1, text))
        if end is None:
            return False
        self._state = _State.TAIL
        return True

    def _end_of_object(self, text: str) -> int | None:
        """Return where the object ends in ``text``; a "<" outside a string is no JSON and ends it as well."""
        for position, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character == "{":
                self._depth += 1
            elif character == "}":
                self._depth -= 1
                if self._depth == 0:
                    return position + 1
            elif character == "<":
                self.malformed += 1
                return position
        return None

    def _read_tail(self, deltas: list[Delta]) -> bool:
        """Skip to the end of the block, or to the next one when it is not closed."""
        found = [(position, tag) for tag in (OPEN, CLOSE) if (position := self._buffer.find(tag)) >= 0]
        if not found:
            self._buffer = self._buffer[-(len(CLOSE) - 1) :]
            return False
        position, tag = min(found)
        self._buffer = self._buffer[position + len(tag) :]
        self._state = _State.TEXT if tag == CLOSE else _State.HEADER
        self._after_call = True
        return True

    def _whole_call(self, body: str, closing: str) -> list[Delta]:
        """Return the call that a complete block holds, or the block as content when it holds none."""
        try:
            call = json.loads(body)
            name, arguments = call["name"], call.get("arguments", call.get("parameters", {}))
            if not isinstance(name, str) or not name or not isinstance(arguments, dict | str):
                raise ValueError("no tool call")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self.malformed += 1
            self._after_call = False
            return [Content(f"{OPEN}{body}{closing}")]
        self._after_call = True
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        start = self._start(name)
        return [start, ToolCallArguments(start.index, text)] if text else [start]

    def _start(self, name: str) -> ToolCallStart:
        self._calls += 1
        return ToolCallStart(self._calls - 1, new_tool_call_id(), name)
