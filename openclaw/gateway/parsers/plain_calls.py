"""Tool calls without tags: one or several JSON objects with ``name`` and ``arguments`` or ``parameters``.

Guarantees: any split of the text gives the same merged deltas. An object is a call only if it names
an offered tool and stands at the beginning of the answer or directly after another call. Everything else is unchanged
content. The name is emitted as soon as it is known, the arguments as they are generated.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from openclaw.gateway.parsers.deltas import CallId, Content, Delta, ToolCallArguments, ToolCallStart
from openclaw.gateway.parsers.json_text import ObjectScanner, read_call

HEADER = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
SEPARATORS = " \t\r\n;,"


class PlainToolCalls:
    """Separates tool calls from content in one reply."""

    def __init__(self, names: Collection[str], call_id: CallId) -> None:
        """Start a reply; ``names`` are the callable tools."""
        self.malformed = 0
        self._call_id = call_id
        self._names = names
        self._calls = 0
        self._buffer = ""
        self._scanned = 0
        self._scanner = ObjectScanner()
        self._step = self._read_object

    def push(self, text: str) -> list[Delta]:
        """Return the deltas of ``text``, the next piece."""
        deltas: list[Delta] = []
        self._buffer += text
        while self._step(deltas):
            continue
        return deltas

    def finish(self) -> list[Delta]:
        """Return the buffered rest; the reply is over."""
        deltas: list[Delta] = []
        text, self._buffer = self._buffer, ""
        if self._step in (self._read_arguments, self._read_rest):
            self.malformed += 1
        if text.strip() or (text and not self._calls):
            deltas.append(Content(text))
        return deltas

    def _read_object(self, deltas: list[Delta]) -> bool:
        """Decide whether a call begins."""
        start = self._buffer.lstrip(SEPARATORS if self._calls else None)
        if not start:
            return False
        if not start.startswith("{"):
            self._step = self._read_content
            return True
        if match := HEADER.match(start):
            if match.group(1) not in self._names:
                self._step = self._read_content
                return True
            self._start(match.group(1), deltas)
            self._buffer = start[match.end() :]
            self._step, self._scanner = self._read_arguments, ObjectScanner()
            return True
        offset = len(self._buffer) - len(start)
        if self._scanned == 0:
            self._scanner, self._scanned = ObjectScanner(), offset
        end = self._scanner.end(self._buffer[self._scanned :])
        if end is None:
            self._scanned = len(self._buffer)
            return False
        end, self._scanned = self._scanned + end, 0
        try:
            name, arguments = read_call(self._buffer[offset:end])
        except ValueError:
            name, arguments = "", ""
        if name not in self._names:
            self._step = self._read_content
            return True
        self._start(name, deltas)
        if arguments:
            deltas.append(ToolCallArguments(self._calls - 1, arguments))
        self._buffer = self._buffer[end:]
        return True

    def _read_arguments(self, deltas: list[Delta]) -> bool:
        end = self._scanner.end(self._buffer)
        text = self._buffer if end is None else self._buffer[:end]
        self._buffer = self._buffer[len(text) :]
        if text:
            deltas.append(ToolCallArguments(self._calls - 1, text))
        if end is None:
            return False
        self._step, self._scanner = self._read_rest, ObjectScanner(depth=1)
        self._scanned = 0
        return True

    def _read_rest(self, deltas: list[Delta]) -> bool:
        """Skip to the end of the call's object; extra text is content."""
        end = self._scanner.end(self._buffer[self._scanned :])
        if end is None:
            self._scanned = len(self._buffer)
            return False
        end += self._scanned
        if rest := self._buffer[: end - 1].strip():
            self.malformed += 1
            deltas.append(Content(rest))
        self._buffer, self._scanned = self._buffer[end:], 0
        self._step = self._read_object
        return True

    def _read_content(self, deltas: list[Delta]) -> bool:
        if self._buffer:
            deltas.append(Content(self._buffer))
            self._buffer = ""
        return False

    def _start(self, name: str, deltas: list[Delta]) -> None:
        deltas.append(ToolCallStart(self._calls, self._call_id(self._calls), name))
        self._calls += 1
        self._scanned = 0
