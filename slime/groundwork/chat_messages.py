"""Chat messages: what is one, its text, pictures and calls, and the form in which chat templates take it.

Guarantees: serving, fine-tuning and prompt data render equal messages equally, because all of them pass through
`in_template_form` and `read_tools`. Messages that serving refuses are refused here, too. Whatever the text of a call's
arguments, no reader raises or recurses deeply. Pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, TypeVar

from jinja2 import TemplateError

from groundwork.exceptions import ConfigError

Message = dict[str, Any]
Done = TypeVar("Done")
TEMPLATE_ERRORS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What a chat template raises for messages that it does not take."""

ROLES = ("system", "developer", "user", "assistant", "tool")
MESSAGE_FIELDS = frozenset({"role", "content", "name", "reasoning_content", "tool_calls", "tool_call_id", "id"})
"""What serving reads of a message. ``id`` is the one that the gateway gave a reply; no template reads it."""
CALL_FIELDS = frozenset({"id", "type", "function"})
CALLED_FIELDS = frozenset({"name", "arguments"})
TOOL_FIELDS = frozenset({"type", "function"})
FUNCTION_FIELDS = frozenset({"name", "description", "parameters", "strict"})
WRITE_CALLS = 'write [{"type": "function", "function": {"name": "...", "arguments": "{...}"}}]'
WRITE_TOOLS = 'write a list of {"type": "function", "function": {"name": "...", "parameters": {...}}}'
WRITE_CONTENT = 'write a text, a list of {"type": "text", "text": "..."}, or null'

IMAGE = "image"
PICTURE_TEXT = f"[{IMAGE}]"
"""What stands for a picture where only text is read: for a judge, in reports (`content_text`)."""
MAX_ARGUMENTS_DEPTH = 100
SQUARE = bytes.maketrans(b"{}", b"[]")
NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
HALF_CHARACTER = "\\ud"
"""Begins the escape of a surrogate; one without its other half is not text that can be tokenised."""


class MessageError(ConfigError):
    """Something is not a list of messages or tools; the text names the message, and says what to write."""


def content_text(content: object) -> str:
    """Return the text of a message content: a string, a list of parts (other parts as ``[type]``), or None."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part["text"] if part.get("type", "text") == "text" else f"[{part['type']}]" for part in content)
    raise ValueError(f"message content must be a string, a list of parts or null, got {type(content).__name__}")


def picture_part(sha256: str) -> dict[str, Any]:
    """Return the part of a picture that the gateway has read: it names the file and holds none of it.

    No client can send it: the schema takes pictures as ``image_url`` only.
    """
    return {"type": IMAGE, "sha256": sha256}


def pictures_of(message: Mapping[str, Any]) -> list[str]:
    """Return the digests of a message's pictures, in order."""
    content = message.get("content")
    if not isinstance(content, list):
        return []
    return [part["sha256"] for part in content if part.get("type") == IMAGE and "sha256" in part]


def pictures_in(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the digests of the pictures in messages, in order."""
    return [digest for message in messages for digest in pictures_of(message)]


def in_template_form(messages: Sequence[Message], work: Callable[[list[Message]], Done]) -> Done:
    """Return the result of ``work``, which renders, on the messages in the form that chat templates expect.

    Some templates go through the names of a call's arguments. If such a one refuses a call whose arguments are not an object,
    because the model wrote none, the call is rendered without arguments.

    Raises:
        TEMPLATE_ERRORS: the template refuses the messages.
    """
    spoken = [template_message(message) for message in messages]
    try:
        return work(spoken)
    except TEMPLATE_ERRORS:
        named = [_with_named_arguments(message) for message in spoken]
        if named == spoken:
            raise
        return work(named)


def _with_named_arguments(message: Message) -> Message:
    """Return a template's message with an empty object in place of arguments that are none."""
    if not message.get("tool_calls"):
        return message
    calls: list[dict[str, Any]] = []
    for call in message["tool_calls"]:
        function = call["function"]
        none = not isinstance(function.get("arguments", {}), dict)
        calls.append({**call, "function": {**function, "arguments": {}}} if none else call)
    return {**message, "tool_calls": calls}


def template_message(message: Message) -> Message:
    """Return a message in the form that chat templates expect.

    Text parts are joined, or stay apart where pictures are among them; of a picture only its place is left. ``developer``
    becomes ``system``, and a tool call's arguments become an object. Fields that serving does not read are left out.
    """
    result = {key: value for key, value in message.items() if value is not None and key in MESSAGE_FIELDS}
    result["content"] = _template_content(message.get("content"))
    if result.get("role") == "developer":
        result["role"] = "system"
    if calls := message.get("tool_calls"):
        result["tool_calls"] = [_template_call(call) for call in calls]
    return result


def _template_content(content: Any) -> Any:
    if not isinstance(content, list) or not any(part.get("type") == IMAGE for part in content):
        return content_text(content)
    return [
        {"type": IMAGE} if part.get("type") == IMAGE else {"type": "text", "text": content_text([part])}
        for part in content
    ]


def _template_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = known_fields(call["function"], CALLED_FIELDS)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        # The model may have written invalid JSON; the template then shows the raw text.
        function = {**function, "arguments": read_arguments(arguments) if arguments.strip() else {}}
    return {**known_fields(call, CALL_FIELDS), "function": function}


def known_fields(value: Mapping[str, Any], fields: Set[str]) -> dict[str, Any]:
    """Return an object with ``fields`` only."""
    return {name: inner for name, inner in value.items() if name in fields}


def check_messages(value: object, *, parts: Sequence[str] | None = ("text",)) -> list[Message]:
    """Return ``value``, a list of messages that serving would take.

    Args:
        value: the messages.
        parts: kinds of content parts that are allowed; None allows all.

    Raises:
        MessageError: naming the message.
    """
    if not isinstance(value, list) or not value:
        raise MessageError('the prompt is not a list of messages; write [{"role": "user", "content": "..."}, ...]')
    for number, message in enumerate(value):
        try:
            _check_message(message, parts)
        except MessageError as error:
            raise MessageError(f"message {number}: {error}") from None
    return value


def _check_message(message: object, parts: Sequence[str] | None) -> None:
    role = message.get("role") if isinstance(message, dict) else message
    if not isinstance(message, dict) or role not in ROLES:
        raise MessageError(f"the role is {str(role)[:100]!r}; write one of {', '.join(ROLES)}")
    if message.get("function_call"):
        raise MessageError("function_call is the old form; write tool_calls")
    _check_content(message.get("content"), parts)
    for name in ("reasoning_content", "name", "tool_call_id"):
        if not isinstance(message.get(name), str | None):
            raise MessageError(f"{name} is {type(message[name]).__name__}; write a text, or leave it out")
    calls = message.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(map(_is_call, calls))):
        raise MessageError(f"tool_calls cannot be read; {WRITE_CALLS}")
    is_trained(message)


def _check_content(content: object, parts: Sequence[str] | None) -> None:
    if isinstance(content, str | None):
        return
    if not isinstance(content, list):
        raise MessageError(
            f"content is not a text, a list of parts or null but {type(content).__name__}; {WRITE_CONTENT}"
        )
    for part in content:
        kind = part.get("type", "text") if isinstance(part, dict) else None
        if not isinstance(part, dict) or not isinstance(kind, str):
            raise MessageError(f"content is not a text, a list of parts or null; {WRITE_CONTENT}")
        if kind == "text" and not isinstance(part.get("text"), str):
            raise MessageError(f"content is not a text: a part has none; {WRITE_CONTENT}")
        if parts is not None and kind not in parts:
            raise MessageError(f"content has a part of type {kind[:100]!r}, which is not read here; {WRITE_CONTENT}")


def _is_call(call: object) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return False
    arguments = function.get("arguments")
    return isinstance(arguments, str | None) or (isinstance(arguments, dict) and _shallow(arguments))


def _shallow(value: object) -> bool:
    try:
        return nesting(json.dumps(value).encode(), MAX_ARGUMENTS_DEPTH) <= MAX_ARGUMENTS_DEPTH
    except (RecursionError, TypeError, ValueError):  # also what JSON cannot hold, such as the dates of a table
        return False


def is_trained(message: Mapping[str, Any]) -> bool:
    """Return whether an assistant message is trained: its ``weight`` and ``step_loss_mask`` are 1 or not there.

    Raises:
        MessageError: one of them is neither 0 nor 1.
    """
    stated = {name: message[name] for name in ("weight", "step_loss_mask") if message.get(name) is not None}
    for name, value in stated.items():
        if not isinstance(value, int | float) or value not in (0, 1):
            raise MessageError(f"{name} is {str(value)[:100]!r}; write 0 to leave the message out of training, or 1")
    return all(stated.values())


def read_tools(value: object) -> list[dict[str, Any]] | None:
    """Return the tools of a row, a list or its JSON text; None without any.

    Raises:
        MessageError: they are something else.
    """
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise MessageError(f"tools: the text is not JSON ({error}); {WRITE_TOOLS}") from error
    if value is None or value in ("", []) or (isinstance(value, str) and not value.strip()):
        return None
    if not isinstance(value, list) or not all(map(_is_tool, value)):
        raise MessageError(f"tools is not a list of functions; {WRITE_TOOLS}")
    return [
        {**known_fields(tool, TOOL_FIELDS), "function": known_fields(tool["function"], FUNCTION_FIELDS)}
        for tool in value
    ]


def _is_tool(tool: object) -> bool:
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
        return False
    return isinstance(tool["function"].get("name"), str) and _shallow(tool)


def nesting(text: bytes, most: int) -> int:
    """Return how deep valid JSON nests, or ``most + 1`` if it nests deeper; without a visit of each value."""
    outside = text.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]  # every other piece is a string
    brackets = b"".join(outside).translate(SQUARE, NO_BRACKETS)
    levels = 0
    while brackets and levels <= most:
        brackets = brackets.replace(b"[]", b"")
        levels += 1
    return levels


def read_arguments(text: str) -> Any:
    """Return the value of a tool call's arguments; text that is not JSON, or cannot be rendered as such, stays text."""
    try:
        value = json.loads(text)
        if HALF_CHARACTER in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return text
    deepest = nesting(text.encode("utf-8", "surrogatepass"), MAX_ARGUMENTS_DEPTH)
    return text if deepest > MAX_ARGUMENTS_DEPTH else value
