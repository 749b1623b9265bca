"""Items of the Responses API, both ways: a history of items becomes chat messages, and a reply becomes items.

Guarantees: `read_items` is a pure function, so a history that a client replays gives the same messages again. The items of
one reply become one assistant message, whose text, thought and arguments are exactly those that were sent. Its ``id`` is
the turn's, if an item names it: by its own id or by ``encrypted_content``, which is nothing but the turn's id.

All system text (``instructions``, ``system`` and ``developer`` messages) becomes one leading system message, because most
chat templates take no other. A tool of a ``namespace`` is one function ``NAMESPACE__NAME``. A ``custom`` tool is a function
of one text, ``input``; its grammar is told to the model in the tool's description and not enforced. Hosted tools, which
run elsewhere, are left out, as are the records of their calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import orjson
from pydantic import Field

from groundwork.chat_messages import Message, known_fields
from openclaw.config.bounds import LABELS, NAME_CHARACTERS
from openclaw.gateway.errors import ApiError, bad_request
from openclaw.gateway.schema import UNSEEN_PICTURE, StrictModel, is_encoded_file, validated
from openclaw.owners import COMPLETION, TURN_ID

Item = dict[str, Any]
SEPARATOR = "__"
"""Between a namespace and a name in a function's name."""
INPUT = "input"
"""The one argument of a custom tool."""
RAW = "x"
"""Ends the id of a custom call whose arguments the model wrote in another form; its input is these arguments."""
ITEM_ID = re.compile(rf"(rs|msg|fc|ctc)_([0-9a-f]{{32}})[0-9a-f]{{2,3}}({RAW}?)")
HOSTED_ITEMS = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_list_tools",
        "mcp_call",
        "mcp_approval_request",
        "mcp_approval_response",
        "tool_search_call",
        "tool_search_output",
    }
)
"""Records of calls that another server ran; they are left out."""


class TextPart(StrictModel):
    """A text in a message or an output."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class RefusalPart(StrictModel):
    """A refusal, which is text here."""

    type: Literal["refusal"]
    refusal: str


class ImagePart(StrictModel):
    """A picture as a ``data:`` URL."""

    type: Literal["input_image"]
    image_url: str
    detail: Literal["auto", "high"] | None = None


Part = Annotated[TextPart | RefusalPart | ImagePart, Field(discriminator="type")]


class MessageItem(StrictModel):
    """A message; ``type`` may be missing."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    id: str | None = None


class ThoughtPart(StrictModel):
    """A piece of a thought."""

    type: Literal["summary_text", "reasoning_text", "text"]
    text: str


class ReasoningItem(StrictModel):
    """A thought of an earlier reply."""

    summary: list[ThoughtPart] | None = None
    content: list[ThoughtPart] | None = None
    encrypted_content: str | None = None
    id: str | None = None


class CallItem(StrictModel):
    """A call of a function."""

    name: str = Field(min_length=1)
    namespace: str | None = None
    arguments: str
    call_id: str = Field(min_length=1)
    id: str | None = None


class CustomCallItem(StrictModel):
    """A call of a custom tool."""

    name: str = Field(min_length=1)
    namespace: str | None = None
    input: str
    call_id: str = Field(min_length=1)
    id: str | None = None


class OutputItem(StrictModel):
    """What a call returned."""

    call_id: str = Field(min_length=1)
    output: str | list[Part]


KINDS: Mapping[str, type[StrictModel]] = {
    "message": MessageItem,
    "reasoning": ReasoningItem,
    "function_call": CallItem,
    "function_call_output": OutputItem,
    "custom_tool_call": CustomCallItem,
    "custom_tool_call_output": OutputItem,
}


TOOL_FIELDS = frozenset({"type", "name", "description", "parameters", "strict", "format", "tools"})
"""What a response repeats of a tool."""


class ToolName(NamedTuple):
    """How a client knows a function of the model."""

    name: str
    namespace: str | None = None
    custom: bool = False


def flat_name(name: str, namespace: str | None) -> str:
    """Return the function name of a tool."""
    return f"{namespace}{SEPARATOR}{name}" if namespace else name


def read_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, ToolName], list[Any]]:
    """Return the tools as chat functions, how their client knows each function, and those tools that are not hosted.

    Raises:
        ApiError: 400 for a tool without a name, or two tools with one.
    """
    functions: list[dict[str, Any]] = []
    names: dict[str, ToolName] = {}
    kept: list[Any] = []

    def add(tool: Mapping[str, Any], namespace: str | None, where: str) -> None:
        name = tool.get("name")
        if not isinstance(name, str) or not name:
            raise bad_request(f"{where}: send its 'name'", param="tools")
        flat = flat_name(name, namespace)
        if flat in names:
            raise bad_request(f"{where}: there are two tools {flat!r}; send one", param="tools")
        names[flat] = ToolName(name, namespace, tool["type"] == "custom")
        functions.append(_custom(tool, flat) if tool["type"] == "custom" else _function(tool, flat))

    for number, tool in enumerate(tools):
        where, kind = f"tools.{number}", tool.get("type")
        if kind in ("function", "custom"):
            add(tool, None, where)
        elif kind == "namespace":
            inner, namespace = tool.get("tools"), tool.get("name")
            if not isinstance(inner, list) or not isinstance(namespace, str) or not namespace:
                raise bad_request(f"{where}: send the 'name' and the 'tools' of the namespace", param="tools")
            own: list[Mapping[str, Any]] = []
            for place, nested in enumerate(inner):
                if isinstance(nested, dict) and nested.get("type") in ("function", "custom"):
                    add(nested, namespace, f"{where}.tools.{place}")
                    own.append(known_fields(nested, TOOL_FIELDS))
            tool = {**tool, "tools": own}
        else:
            continue
        kept.append(known_fields(tool, TOOL_FIELDS))
    if len(orjson.dumps(kept)) > len(orjson.dumps(functions)) + LABELS.most:
        raise bad_request(
            f"tools: send at most {LABELS.most} characters besides what the model reads", param="tools", bound=LABELS
        )
    return functions, names, kept


def _function(tool: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a tool as the model reads it; ``strict`` says something only if it is true, and clients send false with each."""
    fields = {field: tool[field] for field in ("description", "parameters") if tool.get(field) is not None}
    if tool.get("strict") not in (None, False):
        fields["strict"] = tool["strict"]
    return {"type": "function", "function": {"name": name, **fields}}


def _custom(tool: Mapping[str, Any], name: str) -> dict[str, Any]:
    words, form = str(tool.get("description") or ""), tool.get("format")
    if isinstance(form, dict) and form.get("type") == "grammar":
        grammar = f"Its input follows this {form.get('syntax', '')} grammar:\n{form.get('definition', '')}"
        words = f"{words}\n\n{grammar}" if words else grammar
    parameters = {
        "type": "object",
        "properties": {INPUT: {"type": "string"}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": words, "parameters": parameters}}


def named_turn(handle: object) -> str:
    """Return the turn that an item's id or its ``encrypted_content`` names; else empty."""
    if not isinstance(handle, str):
        return ""
    if TURN_ID.fullmatch(handle):
        return handle
    match = ITEM_ID.fullmatch(handle)
    return f"{COMPLETION}{match.group(2)}" if match else ""


PART_FIELDS = frozenset({"type", "text", "refusal", "image_url", "detail"})


@dataclass
class _Reply:
    """The items of one earlier reply, while they are read."""

    turn: str = ""
    texts: list[str] = field(default_factory=list[str])
    thoughts: list[str] = field(default_factory=list[str])
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    last: str = ""

    def takes(self, turn: str, kind: str) -> bool:
        """Return whether the next item, of a turn that may be unknown, belongs to this reply."""
        if turn and self.turn:
            return turn == self.turn
        if kind == "reasoning":
            return self.last in ("", "reasoning")
        return kind != "message" or self.last != "message"

    def message(self) -> Message:
        """Return the reply as a chat message."""
        text = "".join(self.texts)
        message: Message = {"role": "assistant", "content": text if text or not self.calls else None}
        if self.thoughts:
            message["reasoning_content"] = "".join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        return {**message, "id": self.turn} if self.turn else message


def read_items(items: Sequence[object], instructions: str | None = None) -> list[Message]:
    """Return the chat messages of a history.

    Args:
        items: of the request's ``input``; no references to other items.
        instructions: of the request.

    Raises:
        ApiError: 400, naming the item that cannot be read.
    """
    system = [instructions] if instructions else []
    messages: list[Message] = []
    reply: _Reply | None = None
    for number, raw in enumerate(items):
        where = f"input.{number}"
        kind, item = _read_item(raw, where)
        if item is None:
            continue
        if isinstance(item, MessageItem) and item.role in ("system", "developer"):
            system.append(_text(item.content, where))
            continue
        if isinstance(item, OutputItem) or (isinstance(item, MessageItem) and item.role == "user"):
            if reply is not None:
                messages.append(reply.message())
                reply = None
            messages.append(_said(item))
            continue
        assert isinstance(item, MessageItem | ReasoningItem | CallItem | CustomCallItem)
        turn = named_turn(item.encrypted_content if isinstance(item, ReasoningItem) else None) or named_turn(item.id)
        if reply is not None and not reply.takes(turn, kind):
            messages.append(reply.message())
            reply = None
        reply = reply or _Reply()
        reply.turn, reply.last = reply.turn or turn, kind
        _add(reply, item, where)
    if reply is not None:
        messages.append(reply.message())
    return [{"role": "system", "content": "\n\n".join(system)}, *messages] if system else messages


def known_items(items: Iterable[Item]) -> list[Item]:
    """Return the items that `read_items` reads, with those fields only, so that the prompt's bound is theirs."""
    return [_known_item(item) for item in items if item.get("type") not in HOSTED_ITEMS]


def _known_item(raw: Item) -> Item:
    kind = raw.get("type") or "message"
    model = KINDS.get(kind)
    fields = model.model_fields if model is not None else ("id",)
    item = known_fields(raw, {"type", "status", *fields})
    for name in ("id", "status"):
        if not isinstance(item.get(name), str) or len(item[name]) > NAME_CHARACTERS.most:
            item.pop(name, None)
    if not named_turn(item.get("encrypted_content")):
        item.pop("encrypted_content", None)
    if kind == "reasoning" and item.get("content"):
        item["summary"] = []
    for name in ("content", "output", "summary"):
        if isinstance(parts := item.get(name), list):
            item[name] = [known_fields(part, PART_FIELDS) for part in parts]
    return item


def _read_item(raw: object, where: str) -> tuple[str, StrictModel | None]:
    if not isinstance(raw, dict):
        raise bad_request(f"{where}: an item is a JSON object", param="input")
    kind = raw.get("type") or ("message" if "role" in raw else "")
    kind = kind if isinstance(kind, str) else ""
    if kind in HOSTED_ITEMS:
        return kind, None
    model = KINDS.get(kind)
    if model is None:
        raise bad_request(
            f"{where}: items of type {kind[:100]!r} cannot be read; send {', '.join(KINDS)}", param="input"
        )
    known = {name: value for name, value in raw.items() if value is not None}
    if not isinstance(known.get("id"), str):
        known.pop("id", None)
    try:
        return kind, validated(model, known, lambda place: None)
    except ApiError as error:
        raise bad_request(f"{where}.{error.message}", param="input") from error


def _said(item: MessageItem | OutputItem) -> Message:
    """Return a user's message, or a call's output."""
    if isinstance(item, OutputItem):
        return {"role": "tool", "tool_call_id": item.call_id, "content": _content(item.output, read=True)}
    return {"role": "user", "content": _content(item.content)}


def _add(reply: _Reply, item: MessageItem | ReasoningItem | CallItem | CustomCallItem, where: str) -> None:
    match item:
        case MessageItem():
            reply.texts.append(_text(item.content, where))
        case ReasoningItem():
            parts = item.content or item.summary or ()
            reply.thoughts += [part.text for part in parts]
        case CallItem():
            reply.calls.append(_call(item, item.arguments))
        case CustomCallItem():
            named = ITEM_ID.fullmatch(item.id or "")
            raw = named is not None and named.group(3) == RAW
            reply.calls.append(_call(item, item.input if raw else orjson.dumps({INPUT: item.input}).decode()))


def _call(item: CallItem | CustomCallItem, arguments: str) -> dict[str, Any]:
    function = {"name": flat_name(item.name, item.namespace), "arguments": arguments}
    return {"id": item.call_id, "type": "function", "function": function}


def _content(content: str | Sequence[Part], *, read: bool = False) -> Any:
    """Return a content as chat parts; one text alone as a string; ``read``: of what a call returned."""
    if isinstance(content, str):
        return content
    parts = [{"type": "text", "text": UNSEEN_PICTURE} if read and _is_unseen(part) else _part(part) for part in content]
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _is_unseen(part: Part) -> bool:
    return isinstance(part, ImagePart) and not is_encoded_file(part.image_url)


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, ImagePart):
        detail = {} if part.detail is None else {"detail": part.detail}
        return {"type": "image_url", "image_url": {"url": part.image_url, **detail}}
    return {"type": "text", "text": part.refusal if isinstance(part, RefusalPart) else part.text}


def _text(content: str | Sequence[Part], where: str) -> str:
    """Return the text of a message that has no pictures."""
    if isinstance(content, str):
        return content
    parts = [_part(part) for part in content]
    if any(part["type"] != "text" for part in parts):
        raise bad_request(f"{where}: pictures belong in user messages and in outputs of calls", param="input")
    return "".join(part["text"] for part in parts)


@dataclass(frozen=True)
class ItemWriter:
    """Makes the items of one reply.

    Attributes:
        digits: of the completion's id.
        names: how the client knows each function.
        handle: goes out as ``encrypted_content`` of a thought; None if the client did not ask for it.
    """

    digits: str
    names: Mapping[str, ToolName]
    handle: str | None

    def thought(self, place: int, text: str | None, *, whole: bool = True) -> Item:
        """Return the item of a thought; without ``text`` yet, it has no part."""
        summary = [] if text is None else [{"type": "summary_text", "text": text}]
        item: Item = {"id": self._id("rs", place), "type": "reasoning", "summary": summary}
        return item | ({"encrypted_content": self.handle} if self.handle is not None and whole else {})

    def message(self, place: int, content: Sequence[Item], status: str) -> Item:
        """Return the item of a text."""
        fields = {"status": status, "role": "assistant", "content": list(content)}
        return {"id": self._id("msg", place), "type": "message", **fields}

    def call(self, place: int, call_id: str, function: str, arguments: str, status: str) -> Item:
        """Return the item of a call."""
        known = self.names.get(function, ToolName(function))
        space = {} if known.namespace is None else {"namespace": known.namespace}
        if known.custom:
            text, end = custom_input(arguments)
            item: Item = {"id": self._id("ctc", place) + end, "type": "custom_tool_call", "call_id": call_id}
            return {**item, "name": known.name, **space, "input": text, "status": status}
        item = {"id": self._id("fc", place), "type": "function_call", "call_id": call_id, "name": known.name, **space}
        return {**item, "arguments": arguments, "status": status}

    def is_custom(self, function: str) -> bool:
        """Return whether a function is a custom tool of the client."""
        return function in self.names and self.names[function].custom

    def of_message(
        self, message: Message, *, complete: bool, logprobs: Callable[[str], list[Any]] = lambda text: []
    ) -> list[Item]:
        """Return the items of a whole reply; ``logprobs`` gives those of its text."""
        items: list[Item] = []
        if thought := message.get("reasoning_content"):
            items.append(self.thought(len(items), thought))
        text, calls = message.get("content") or "", message.get("tool_calls") or []
        if text or not (items or calls):
            status = "completed" if complete or calls else "incomplete"
            items.append(self.message(len(items), [text_part(text, logprobs(text))], status))
        for number, call in enumerate(calls, start=1):
            status = "completed" if complete or number < len(calls) else "incomplete"
            function = call["function"]
            items.append(self.call(len(items), call["id"], function["name"], function["arguments"], status))
        return items

    def _id(self, kind: str, place: int) -> str:
        return f"{kind}_{self.digits}{place:02x}"


def text_part(text: str, logprobs: Sequence[Any] = ()) -> Item:
    """Return the content part of a text."""
    return {"type": "output_text", "annotations": [], "logprobs": list(logprobs), "text": text}


def custom_input(arguments: str) -> tuple[str, str]:
    """Return the text that a custom tool gets, and `RAW` if it is the arguments themselves, which have another form."""
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments, RAW
    if isinstance(value, dict) and value.keys() == {INPUT} and isinstance(value[INPUT], str):
        return value[INPUT], ""
    return arguments, RAW


def entries_of(text: str, entries: Sequence[Mapping[str, Any]], after: str = "") -> list[Mapping[str, Any]]:
    """Return the log-probabilities of the tokens that ``text`` consists of, among those of a reply or a piece of it.

    Args:
        text: a piece of what the entries' tokens spell.
        entries: in order; the thought and calls have some, too.
        after: a text that ends before it.
    """
    sizes = [len(entry["bytes"]) for entry in entries]
    spelled = b"".join(bytes(entry["bytes"]) for entry in entries)
    wanted = text.encode()
    first = spelled.find(after.encode())
    begin = spelled.find(wanted, 0 if first < 0 else first + len(after.encode()))
    if begin < 0 or not wanted:
        return []
    kept, place = [], 0
    for entry, size in zip(entries, sizes, strict=True):
        if place < begin + len(wanted) and place + size > begin:
            kept.append(entry)
        place += size
    return kept


def with_ids(items: Iterable[Item], digits: str) -> list[Item]:
    """Return input items, each with an id."""
    return [item if item.get("id") else {**item, "id": f"in_{digits}{place:03x}"} for place, item in enumerate(items)]
