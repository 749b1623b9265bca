"""The fields of messages and tools that this server reads; nothing else of them is kept.

Guarantees: what is rendered, stored, matched and judged has only these fields, in the client's order and with its values.
Whatever else a client sends in a message, a content part, a tool call or a tool is dropped here. So a stored turn is
bounded by `PROMPT_CHARACTERS` and the reply. Values of a wrong type pass through, for the schema to refuse.

A field is here because a chat template or the ledger reads it. Add the fields that a new template reads. Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import orjson

from groundwork.chat_messages import (
    CALL_FIELDS,
    CALLED_FIELDS,
    FUNCTION_FIELDS,
    MESSAGE_FIELDS,
    TOOL_FIELDS,
)
from openclaw.config.bounds import MESSAGE_ITEMS, MESSAGES, PROMPT_CHARACTERS, TOOLS
from openclaw.gateway.errors import bad_request

PART_FIELDS = frozenset({"type", "text", "image_url"})
IMAGE_FIELDS = frozenset({"url", "detail"})


def known_messages(messages: object) -> object:
    """Return messages with their known fields only.

    Raises:
        ApiError: 400 for more messages, parts or calls than a request may have.
    """
    if not isinstance(messages, list):
        return messages
    if len(messages) > MESSAGES.most:
        raise bad_request(f"messages: send at most {MESSAGES.most}", param="messages", bound=MESSAGES)
    items = sum(_items(message.get("content")) + _items(message.get("tool_calls")) for message in _objects(messages))
    if items > MESSAGE_ITEMS.most:
        raise bad_request(
            f"messages: send at most {MESSAGE_ITEMS.most} content parts and tool calls",
            param="messages",
            bound=MESSAGE_ITEMS,
        )
    return [_known_message(message) for message in messages]


def known_tools(tools: object) -> object:
    """Return tools with their known fields only.

    Raises:
        ApiError: 400 for more tools than a request may have.
    """
    if not isinstance(tools, list):
        return tools
    if len(tools) > TOOLS.most:
        raise bad_request(f"tools: send at most {TOOLS.most}", param="tools", bound=TOOLS)
    return [_with_function(tool, TOOL_FIELDS, FUNCTION_FIELDS) for tool in tools]


def prompt_characters(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> int:
    """Return the characters of all texts that a prompt may contain; of structures, those of their JSON.

    Pictures have bounds of their own (`openclaw.gateway.pictures`).
    """
    total = len(orjson.dumps(tools)) if tools else 0
    for message in messages:
        for value in message.values():
            total += len(value) if isinstance(value, str) else len(orjson.dumps(_without_urls(value))) if value else 0
    return total


def _without_urls(value: Any) -> Any:
    """Return a content without its pictures; any other value as it is."""
    if not isinstance(value, list) or not any("image_url" in part for part in _objects(value)):
        return value
    return [part for part in value if not (isinstance(part, dict) and "image_url" in part)]


def check_prompt_size(characters: int, context_length: int) -> None:
    """Refuse a prompt that cannot fit the context, without tokenising it.

    Raises:
        ApiError: 400 ``context_length_exceeded``.
    """
    if characters > context_length * PROMPT_CHARACTERS.most:
        raise bad_request(
            f"This model's maximum context length is {context_length} tokens. However, your messages have {characters} "
            "characters, which are more tokens than that. Please reduce the length of the messages.",
            param="messages",
            code="context_length_exceeded",
            bound=PROMPT_CHARACTERS,
        )


def _items(value: object) -> int:
    return len(value) if isinstance(value, list) else 0


def _objects(values: Sequence[object]) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)]


def _kept(value: object, fields: Set[str]) -> Any:
    """Return an object with ``fields`` only; any other value as it is."""
    if not isinstance(value, dict):
        return value
    return value if value.keys() <= fields else {name: inner for name, inner in value.items() if name in fields}


def _known_message(message: object) -> object:
    kept = _kept(message, MESSAGE_FIELDS)
    if not isinstance(kept, dict):
        return kept
    if "id" in kept and not isinstance(kept["id"], str):
        kept = {name: value for name, value in kept.items() if name != "id"}
    changes: dict[str, Any] = {}
    if isinstance(content := kept.get("content"), list):
        changes["content"] = [_known_part(part) for part in content]
    if isinstance(calls := kept.get("tool_calls"), list):
        changes["tool_calls"] = [_with_function(call, CALL_FIELDS, CALLED_FIELDS) for call in calls]
    return {**kept, **changes} if changes else kept


def _known_part(part: object) -> object:
    kept = _kept(part, PART_FIELDS)
    if isinstance(kept, dict) and isinstance(image := kept.get("image_url"), dict):
        return {**kept, "image_url": _kept(image, IMAGE_FIELDS)}
    return kept


def _with_function(value: object, fields: Set[str], function_fields: Set[str]) -> object:
    kept = _kept(value, fields)
    if isinstance(kept, dict) and isinstance(function := kept.get("function"), dict):
        return {**kept, "function": _kept(function, function_fields)}
    return kept
