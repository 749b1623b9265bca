"""Qwen's tool-call format: `<tool_call>`, an object with ``name`` and ``arguments``, `</tool_call>`, any number of times.

Guarantees, beside those of `TaggedToolCalls`: the name leaves as soon as it is known, the arguments as they are
generated, in the model's own JSON text; those that end too early are delivered as far as they came and counted in
``malformed``.
"""

from __future__ import annotations

import re

from openclaw.gateway.parsers.deltas import Delta
from openclaw.gateway.parsers.json_text import ObjectScanner, read_call
from openclaw.gateway.parsers.tagged import CLOSE, TaggedToolCalls

# The name has no "<", so that a closing tag is never read as part of it.
HEADER = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\<]+)"\s*,\s*"arguments"\s*:\s*(?=\{)')


class JsonToolCalls(TaggedToolCalls):
    """Reads calls that are JSON objects in tags."""

    def __init__(self) -> None:
        super().__init__()
        self._scanner = ObjectScanner()

    def read_inside(self, deltas: list[Delta]) -> bool:
        """Wait for the name, or for the end of the block when it is written in another order."""
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
        """Deliver what there is of a call."""
        if self.step == self.read_inside:
            self._whole_call(text, "", deltas)
        else:
            self.malformed += 1

    def tail_junk(self, text: str) -> str:
        """The brace that closes the object belongs there."""
        return text.strip().removeprefix("}").strip()

    def _read_arguments(self, deltas: list[Delta]) -> bool:
        """Emit the JSON object of the arguments up to its end."""
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
        """Emit the call that a complete block holds, or the block as content when it holds none."""
        try:
            name, arguments = read_call(body)
        except ValueError:
            self.reject_block(body, closing, deltas)
            return
        self.start_call(name, deltas)
        self.add_arguments(arguments, deltas)
