"""The base of tool-call formats in `<tool_call>` … `</tool_call>`; a subclass parses the inside.

Guarantees: any split of the text gives the same merged deltas. Nothing is lost: unreadable text
becomes content and is counted in ``malformed``. Line breaks and spaces around the blocks belong to the format.
"""

from __future__ import annotations

from collections.abc import Callable

from openclaw.gateway.parsers.deltas import CallId, Content, Delta, ToolCallArguments, ToolCallStart
from openclaw.gateway.parsers.scan import held_back

OPEN, CLOSE = "<tool_call>", "</tool_call>"
Step = Callable[[list[Delta]], bool]


class TaggedToolCalls:
    """Separates tool calls from content in one reply.

    A step consumes what it can from ``buffer`` and returns whether the next step may run; ``self.step`` is the current one.
    """

    def __init__(self, call_id: CallId) -> None:
        self.malformed = 0
        self._call_id = call_id
        self.buffer = ""
        self.calls = 0
        self.step: Step = self.read_text
        self._after_call = False

    def push(self, text: str) -> list[Delta]:
        """Return the deltas of ``text``, the next piece."""
        deltas: list[Delta] = []
        self.buffer += text
        while self.step(deltas):
            continue
        return deltas

    def finish(self) -> list[Delta]:
        """Return the buffered rest; the reply is over."""
        deltas: list[Delta] = []
        text, self.buffer = self.buffer, ""
        if self.step == self.read_text:
            return [Content(text)] if text else []
        if self.step == self.read_tail:
            self.give_back(self.tail_junk(text), deltas)
        else:
            self.end_inside(text, deltas)
        return deltas

    def read_inside(self, deltas: list[Delta]) -> bool:
        """Read the text after the opening tag."""
        raise NotImplementedError

    def end_inside(self, text: str, deltas: list[Delta]) -> None:
        """Handle the end of the reply inside a block; ``text`` is unread."""
        raise NotImplementedError

    def tail_junk(self, text: str) -> str:
        """Return the unexpected text between the end of the arguments and the closing tag."""
        return text.strip()

    def read_text(self, deltas: list[Delta]) -> bool:
        """Emit content up to the next block."""
        if self._after_call:
            self.buffer = self.buffer.lstrip()
        content, tag, rest = self.buffer.partition(OPEN)
        if tag:
            content = content.rstrip("\n")
            self.step, self.buffer = self.read_inside, rest
        else:
            certain = content[: len(content) - held_back(content, (OPEN,))].rstrip("\n")
            self.buffer = content[len(certain) :]
            content = certain
        if content:
            self._after_call = False
            deltas.append(Content(content))
        return bool(tag)

    def read_tail(self, deltas: list[Delta]) -> bool:
        """Skip to the end of the block, or to the next block if it is not closed."""
        found = [(position, tag) for tag in (OPEN, CLOSE) if (position := self.buffer.find(tag)) >= 0]
        if not found:
            return False
        position, tag = min(found)
        self.give_back(self.tail_junk(self.buffer[:position]), deltas)
        self.buffer = self.buffer[position + len(tag) :]
        self.step = self.read_text if tag == CLOSE else self.read_inside
        return True

    def give_back(self, text: str, deltas: list[Delta]) -> None:
        """Emit unexpected text as content."""
        if text.strip():
            self.malformed += 1
            deltas.append(Content(text))

    def reject_block(self, body: str, closing: str, deltas: list[Delta]) -> None:
        """Emit a whole block as content."""
        self.malformed += 1
        self._after_call = False
        deltas.append(Content(f"{OPEN}{body}{closing}"))

    def start_call(self, name: str, deltas: list[Delta]) -> None:
        """Start a call."""
        self._after_call = True
        deltas.append(ToolCallStart(self.calls, self._call_id(self.calls), name))
        self.calls += 1

    def add_arguments(self, text: str, deltas: list[Delta]) -> None:
        """Append to the arguments of the current call."""
        if text:
            deltas.append(ToolCallArguments(self.calls - 1, text))
