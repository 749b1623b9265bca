"""The tool-call format of Qwen3-Coder and Qwen3.5: tags for the function and each of its parameters.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    value
    </parameter>
    </function>
    </tool_call>

Guarantees, besides those of `TaggedToolCalls`: the arguments are a JSON object, and each value has its type in the
tool's schema. The name is emitted as soon as it is known, texts as they are generated, other values when complete. A call
that is cut short is emitted as far as it goes and counted in ``malformed``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from openclaw.gateway.parsers.deltas import CallId, Delta
from openclaw.gateway.parsers.scan import held_back
from openclaw.gateway.parsers.tagged import CLOSE, TaggedToolCalls
from openclaw.gateway.parsers.typed import TEXT, parameter_types, parameter_words, typed_json

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
NAME_ENDS = "<>\n"


class XmlToolCalls(TaggedToolCalls):
    """Parses calls written as tags."""

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]], call_id: CallId) -> None:
        """Start a reply; ``schemas`` maps each function to its parameters' JSON schema."""
        super().__init__(call_id)
        self._schemas = schemas
        self._schema: Mapping[str, Any] = {}
        self._types: frozenset[str] = TEXT
        self._words: frozenset[str] = frozenset()
        self._parameters = 0
        self._begun = False

    def read_inside(self, deltas: list[Delta]) -> bool:
        """Wait for the function's name, or for the end of a block without one."""
        start = self.buffer.lstrip()
        if start.startswith(FUNCTION):
            name, rest = _tag_name(start[len(FUNCTION) :])
            if rest is not None and name:
                self.start_call(name, deltas)
                self._schema, self._parameters = self._schemas.get(name, {}), 0
                self.step, self.buffer = self._read_parameters, rest
                return True
        body, tag, rest = self.buffer.partition(CLOSE)
        if not tag:
            return False
        self.reject_block(body, CLOSE, deltas)
        self.step, self.buffer = self.read_text, rest
        return True

    def end_inside(self, text: str, deltas: list[Delta]) -> None:
        """Emit the incomplete call."""
        if self.step == self.read_inside:
            self.reject_block(text, "", deltas)
            return
        self.malformed += 1
        if self.step == self._read_value and self._streams:
            self._add_text(text, deltas)
        elif self.step == self._read_value:
            self.add_arguments(text.strip(), deltas)
        elif text.strip():
            self.give_back(text, deltas)

    def _read_parameters(self, deltas: list[Delta]) -> bool:
        """Find the next parameter, or the end of the function."""
        tags = (PARAMETER, FUNCTION_END, CLOSE)
        found = [(position, tag) for tag in tags if (position := self.buffer.find(tag)) >= 0]
        if not found:
            return False
        position, tag = min(found)
        after = position + len(tag)
        if tag == PARAMETER:
            name, rest = _tag_name(self.buffer[after:])
            if rest is None and name is None:
                return False
            if rest is None or not name:
                # Not a parameter's tag: emit it as content up to the mismatch.
                end = after + len(name or "")
                self.give_back(self.buffer[:end].strip(), deltas)
                self.buffer = self.buffer[end:]
                return True
            self.give_back(self.buffer[:position].strip(), deltas)
            self._begin_value(name, deltas)
            self.buffer = rest
            return True
        self.give_back(self.buffer[:position].strip(), deltas)
        self.add_arguments("}" if self._parameters else "{}", deltas)
        if tag == FUNCTION_END:
            self.step, self.buffer = self.read_tail, self.buffer[after:]
        else:
            self.malformed += 1
            self.step, self.buffer = self.read_text, self.buffer[after:]
        return True

    def _begin_value(self, name: str, deltas: list[Delta]) -> None:
        self._types = parameter_types(self._schema, name)
        self._words = parameter_words(self._schema, name)
        quote = '"' if self._streams else ""
        opening = ", " if self._parameters else "{"
        self.add_arguments(f"{opening}{json.dumps(name, ensure_ascii=False)}: {quote}", deltas)
        self._parameters += 1
        self._begun = False
        self.step = self._read_value

    def _read_value(self, deltas: list[Delta]) -> bool:
        """Read a value; one line break at each end belongs to the format."""
        value, tag, rest = self.buffer.partition(PARAMETER_END)
        if not self._streams:
            if tag:
                self.add_arguments(self._whole_value(value), deltas)
        elif tag:
            self._add_text(value, deltas, last=True)
            self.add_arguments('"', deltas)
        else:
            keep = held_back(value, (f"\n{PARAMETER_END}", PARAMETER_END))
            if len(value) > keep:
                self._add_text(value[: len(value) - keep], deltas)
                self.buffer = value[len(value) - keep :]
        if tag:
            self.step, self.buffer = self._read_parameters, rest
        return bool(tag)

    @property
    def _streams(self) -> bool:
        """Whether the value is free text, which is emitted as it is generated."""
        return self._types == TEXT and not self._words

    def _whole_value(self, value: str) -> str:
        if value.strip() in self._words:
            return json.dumps(value.strip(), ensure_ascii=False)
        return typed_json(value.removeprefix("\n").removesuffix("\n"), self._types)

    def _add_text(self, text: str, deltas: list[Delta], *, last: bool = False) -> None:
        """Emit a piece of a text value as part of a JSON string."""
        if not self._begun and text:
            text, self._begun = text.removeprefix("\n"), True
        if last:
            text = text.removesuffix("\n")
        self.add_arguments(json.dumps(text, ensure_ascii=False)[1:-1], deltas)


def _tag_name(text: str) -> tuple[str | None, str | None]:
    """Return the name at the beginning of ``text`` and the text after its ``>``.

    Both are None if the tag is incomplete. Only the second is None if it is not a tag.
    """
    end = next((position for position, character in enumerate(text) if character in NAME_ENDS), None)
    if end is None:
        return None, None
    return (text[:end].strip(), text[end + 1 :]) if text[end] == ">" else (text[:end], None)
