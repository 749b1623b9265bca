"""Parsers of tool calls, one class for each format.

`JsonToolCalls` is Qwen's and Hermes' format: ``<tool_call>``, an object with ``name`` and ``arguments``, ``</tool_call>``.
`XmlToolCalls` is that of Qwen3-Coder and Qwen3.5, with tags for the function and each of its parameters:

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    value
    </parameter>
    </function>
    </tool_call>

`PlainToolCalls` has no tags: one or several JSON objects with ``name`` and ``arguments`` or ``parameters``, each a call only
if it names an offered tool and stands at the beginning of the answer or directly after another call.

Guarantees: any split of the text gives the same merged deltas. The name is emitted as soon as it is known, arguments as
they are generated. Nothing is lost: unreadable text becomes content; it and calls that are cut short are counted in
``malformed``. A value in tags becomes JSON of its type in the tool's schema, or a string. A parser owns the state of one
reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from chat_codec.reply_parser import CallId, Content, Delta, ToolCallArguments, ToolCallStart, held_back


class ObjectScanner:
    """Scans one JSON object to its end; owns the state of one object."""

    def __init__(self, *, depth: int = 0, stop_at: str = "") -> None:
        """Start an object.

        Args:
            depth: number of braces already open.
            stop_at: a character that ends the object when it appears outside a string.
        """
        self.broken = False
        self._depth = depth
        self._stop_at = stop_at
        self._in_string = False
        self._escaped = False

    def end(self, text: str) -> int | None:
        """Return the object's end in ``text``, its next piece, or None; set ``broken`` if it is cut short."""
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
            elif character == self._stop_at:
                self.broken = True
                return position
        return None


def read_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: if it is invalid, has NaN or infinity, a lone surrogate, or nests too deep.
    """
    try:
        text.encode()
        value = json.loads(text, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    return value


def read_call(text: str) -> tuple[str, str]:
    """Return the name and the arguments' JSON text of a call that is one JSON object.

    Raises:
        ValueError: if it is not a call.
    """
    call = read_json(text)
    if not isinstance(call, dict) or not isinstance(name := call.get("name"), str) or not name:
        raise ValueError("not a tool call")
    arguments = call.get("arguments", call.get("parameters", {}))
    if not isinstance(arguments, dict | str):
        raise ValueError("arguments are not an object")
    return name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


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
        results = [(position, tag) for tag in (OPEN, CLOSE) if (position := self.buffer.find(tag)) >= 0]
        if not results:
            return False
        position, tag = min(results)
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


TEXT = frozenset({"string"})
NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
WORDS = {"true": ("boolean", "true"), "false": ("boolean", "false"), "null": ("null", "null"), "none": ("null", "null")}
MAX_REFERENCE_CHAIN = 8


def parameter_types(schema: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the JSON types of a parameter; string if the schema does not say."""
    properties = schema.get("properties")
    return (_types(properties.get(name), schema, 0) if isinstance(properties, Mapping) else frozenset()) or TEXT


def parameter_words(schema: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the allowed texts of an enum parameter, empty for any other."""
    properties = schema.get("properties")
    stated = properties.get(name) if isinstance(properties, Mapping) else None
    values = stated.get("enum") if isinstance(stated, Mapping) else None
    return frozenset(value for value in values if isinstance(value, str)) if isinstance(values, list) else frozenset()


def typed_json(text: str, types: frozenset[str]) -> str:
    """Return the JSON text of a value.

    JSON of one of ``types`` is returned as it is, and any JSON if no string is allowed.
    """
    stripped = text.strip()
    try:
        value = read_json(stripped)
    except ValueError:
        kind, word = WORDS.get(stripped.lower(), ("", ""))
        return word if kind in types else json.dumps(text, ensure_ascii=False)
    kind = NAMES.get(type(value), "null")
    fits = kind in types or (kind == "integer" and "number" in types)
    return stripped if fits or "string" not in types else json.dumps(text, ensure_ascii=False)


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    """Return the types of a schema, empty if it names none."""
    if not isinstance(schema, Mapping) or depth > MAX_REFERENCE_CHAIN:
        return frozenset()
    if isinstance(reference := schema.get("$ref"), str):
        return _types(_resolve(reference, root), root, depth + 1)
    stated = schema.get("type")
    if isinstance(stated, str):
        return frozenset({stated})
    if isinstance(stated, list):
        return frozenset(kind for kind in stated if isinstance(kind, str))
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(options := schema.get(name), list):
            return frozenset().union(*(_types(option, root, depth + 1) for option in options))
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    return frozenset(NAMES.get(type(value), "null") for value in values)


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    """Return the target of a reference within the schema, or None."""
    target: Any = root if reference.startswith("#") else None
    for part in reference.removeprefix("#").strip("/").split("/"):
        if part:
            target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
    return target


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
        results = [(position, tag) for tag in tags if (position := self.buffer.find(tag)) >= 0]
        if not results:
            return False
        position, tag = min(results)
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


PLAIN_HEADER = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
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
        if match := PLAIN_HEADER.match(start):
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
