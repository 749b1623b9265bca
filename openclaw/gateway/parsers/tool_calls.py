"""Qwen's tool-call format: `<tool_call>`, an object with ``name`` and ``arguments``, `</tool_call>`, any number of times.

Guarantees, besides those of `TaggedToolCalls`: the name is emitted as soon as it is known, the arguments as they are
generated, in the model's own JSON text. Arguments that are cut short are emitted as far as they go and counted in
``malformed``.
"""

from __future__ import annotations

import re

from openclaw.gateway.parsers.deltas import CallId, Delta
from openclaw.gateway.parsers.json_text import ObjectScanner, read_call
from openclaw.gateway.parsers.tagged import CLOSE, TaggedToolCalls

# Exclude "<" from names, so that a closing tag never becomes part of one.
HEADER = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\<]+)"\s*,\s*"arguments"\s*:\s*(?=\{)')


class JsonToolCalls(TaggedToolCalls):
    """Reads calls that are JSON objects in tags."""

    def __init__(self, call_id: CallId) -> None:
        super().__init__(call_id)
        self._scanner = ObjectScanner()

    def read_inside(self, deltas: list[Delta]) -> bool:
        """Wait for the name, or for the end of the block if the keys have another order."""
        match = HEADER.match(self.buffer)
        if match:
            self.start_call(match.group(1), deltas)
            self.buffer = self.buffer[match.end() :]
            self.step, self._scanner = self._read_arguments, ObjectScanner(stop_at="<")
            return True
        body, tag, rest = self.buffer.partition(CLOSE)
        if not tag:
            return False
        self._whole_call(body, CLOSE, deltas)
        self.step, self.buffer = self.read_text, rest
        return True

    def end_inside(self, text: str, deltas: list[Delta]) -> None:
        """Emit the incomplete call."""
        if self.step == self.read_inside:
            self._whole_call(text, "", deltas)
        else:
            self.malformed += 1

    def tail_junk(self, text: str) -> str:
        """Return unexpected text; the object's closing brace is expected."""
        return text.strip().removeprefix("}").strip()

    def _read_arguments(self, deltas: list[Delta]) -> bool:
        """Emit the arguments' JSON object up to its end."""
        end = self._scanner.end(self.buffer)
        text = self.buffer if end is None else self.buffer[:end]
        self.buffer = self.buffer[len(text) :]
        self.add_arguments(text, deltas)
        if end is None:
            return False
        self.malformed += self._scanner.broken
        self.step = self.read_tail
        return True

    def _whole_call(self, body: str, closing: str, deltas: list[Delta]) -> None:
        """Emit a complete block as a call, or as content if it is not one."""
        try:
            name, arguments = read_call(body)
        except ValueError:
            self.reject_block(body, closing, deltas)
            return
        self.start_call(name, deltas)
        self.add_arguments(arguments, deltas)
