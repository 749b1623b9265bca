"""Digests by which a reply, and the conversation up to it, are recognised when a client sends them back.

Guarantees: what clients change on the way does not count: tool-call ids, spaces at the ends of a text, the form of the
arguments' JSON, reasoning, internal context. Everything else does. Pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

from openclaw.classify import is_internal
from openclaw.text import content_text

Message = dict[str, Any]
DIGEST_BYTES = 16


def message_digest(message: Message) -> bytes:
    """Return what identifies a message: role, text, and the calls in it."""
    role = {"developer": "system"}.get(message.get("role", ""), message.get("role", ""))
    calls = [
        [call.get("function", {}).get("name"), _arguments(call.get("function", {}).get("arguments"))]
        for call in message.get("tool_calls") or []
    ]
    identity = json.dumps([role, content_text(message.get("content")).strip(), calls], sort_keys=True)
    return blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def reply_positions(messages: Sequence[Message]) -> Iterator[tuple[int, bytes]]:
    """Yield (position, digest) of the assistant messages, the last one first."""
    for position in range(len(messages) - 1, -1, -1):
        if messages[position].get("role") == "assistant":
            yield position, message_digest(messages[position])


def conversation_positions(messages: Sequence[Message]) -> list[tuple[int, bytes]]:
    """Return (position, digest of the conversation up to and with it) of the assistant messages, the last one first."""
    found = []
    chain = b""
    for position, message in enumerate(messages):
        if is_internal(message):
            continue
        chain = blake2b(chain + message_digest(message), digest_size=DIGEST_BYTES).digest()
        if message.get("role") == "assistant":
            found.append((position, chain))
    return found[::-1]


def conversation_digest(messages: Sequence[Message], reply: Message) -> bytes:
    """Return the digest of a conversation that ends in ``reply``."""
    return conversation_positions([*messages, {**reply, "role": "assistant"}])[0][1]


def messages_digest(messages: Sequence[Message]) -> bytes:
    """Return what identifies a list of messages."""
    digests = [message_digest(message) for message in messages if not is_internal(message)]
    return blake2b(b"".join(digests), digest_size=DIGEST_BYTES).digest()


def _arguments(arguments: object) -> object:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
