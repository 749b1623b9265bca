"""What a request is, read from its messages: whose turn it is, and which messages are nobody's words.

Guarantees: pure functions of the messages. A turn is ``main`` (the user's, or a tool result of the user's task) unless
the client says otherwise or its text is one that the client writes by itself (heartbeat, cron, memory flush, compaction).
The texts are those of OpenClaw; any other client's turns are ``main``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from openclaw.text import content_text

Message = dict[str, Any]
SideKind = Literal["heartbeat", "cron", "memory_flush", "compaction"]

INTERNAL_CONTEXT = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"
DATE_PREFIX = re.compile(r"\s*\[[A-Z][a-z]{2} \d{4}-\d{2}-\d{2} \d{2}:\d{2}[^\]]*\]\s*")
QUEUED_PREFIX = re.compile(r"\s*\[Queued user message from a previous active turn[^\]]*\]\s*")
RUNTIME_SESSION = re.compile(r"^Runtime: .*\bsessionId=([^\s|]+)", re.MULTILINE)
SIDE_PREFIXES: tuple[tuple[SideKind, str], ...] = (
    ("heartbeat", "[OpenClaw heartbeat poll]"),
    ("heartbeat", "Follow the heartbeat monitor scratch context"),
    ("heartbeat", "Read HEARTBEAT.md"),
    ("cron", "[cron:"),
    ("memory_flush", "Pre-compaction memory flush"),
)
SUMMARISER_PREFIX = "You are a context summarization assistant"


def is_internal(message: Message) -> bool:
    """Return whether a message is context that the client adds to a request and takes out again."""
    return message.get("role") == "user" and _starts_with(message, INTERNAL_CONTEXT)


def _starts_with(message: Message, prefix: str) -> bool:
    return content_text(message.get("content")).lstrip().startswith(prefix)


def spoken(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without the client's internal context."""
    return [message for message in messages if not is_internal(message)]


def plain_user_text(message: Message) -> str:
    """Return a user message's text without the prefixes that the client puts before it."""
    text = content_text(message.get("content"))
    for prefix in (DATE_PREFIX, QUEUED_PREFIX):
        if match := prefix.match(text):
            text = text[match.end() :]
    return text.lstrip()


def side_kind(messages: Sequence[Message]) -> SideKind | None:
    """Return which of the client's own turns a request is, or None for a turn of the user's."""
    heard = spoken(messages)
    first = heard[0] if heard else {}
    if first.get("role") in ("system", "developer") and _starts_with(first, SUMMARISER_PREFIX):
        return "compaction"
    for message in reversed(heard):
        if message.get("role") == "user":
            return message_side_kind(message)
    return None


def message_side_kind(message: Message) -> SideKind | None:
    """Return which of the client's own texts a user message is, or None."""
    text = plain_user_text(message)
    return next((kind for kind, prefix in SIDE_PREFIXES if text.startswith(prefix)), None)


def runtime_session(messages: Sequence[Message]) -> str | None:
    """Return the session id in the ``Runtime:`` line of the first user message, if there is one."""
    for message in messages:
        if message.get("role") == "user":
            match = RUNTIME_SESSION.search(content_text(message.get("content")))
            return match.group(1) if match else None
    return None


def next_state_after(messages: Sequence[Message], reply: int) -> list[Message]:
    """Return the messages that followed the reply at position ``reply``, up to the next assistant message.

    Internal context is left out, and so are exchanges that the client had with itself in between.
    """
    return list(_following(spoken(messages[reply + 1 :])))


def _following(messages: Sequence[Message]) -> Iterator[Message]:
    own_exchange = False
    for message in messages:
        role = message.get("role")
        if role == "user":
            own_exchange = message_side_kind(message) is not None
        if own_exchange:
            continue
        if role == "assistant":
            return
        if role in ("user", "tool"):
            yield message
