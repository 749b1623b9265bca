"""Classifies a request by its messages: main or side turn, and which messages the client wrote by itself.

Guarantees: pure functions of the request. A turn is ``main`` (the user's, or a tool result of the user's task) with
four exceptions: the client says otherwise, the client wrote the text by itself (heartbeat, cron, memory flush,
compaction), the Runtime line names a session that is not the user's (subagent, cron, internal effects), or another known
client calls for itself (`openclaw.messages.side_calls`). The texts here are OpenClaw's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from groundwork.chat_messages import Message
from openclaw.messages.own_requests import own_request
from openclaw.messages.side_calls import Asked, ClientCall, client_call
from openclaw.messages.text import content_text

SideKind = Literal["heartbeat", "cron", "memory_flush", "compaction", "subagent", "internal"] | ClientCall

INTERNAL_CONTEXT = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"
DATE_PREFIX = re.compile(r"\s*\[[A-Z][a-z]{2} \d{4}-\d{2}-\d{2} \d{2}:\d{2}[^\]]*\]\s*")
QUEUED_PREFIX = re.compile(r"\s*\[Queued user message from a previous active turn[^\]]*\]\s*")
RESUME_PREFIX = "Continue the current task from the existing transcript"
RUNTIME_PREFIX = "Runtime: agent="
RUNTIME_SESSION = re.compile(r"\bsessionId=([^\s|]+)")
RUNTIME_KEY = re.compile(r"\bsession=\S*?:(subagent|cron|internal-session-effects):")
SIDE_KEYS: dict[str, SideKind] = {"subagent": "subagent", "cron": "cron", "internal-session-effects": "internal"}
SIDE_PREFIXES: tuple[tuple[SideKind, str], ...] = (
    ("heartbeat", "[OpenClaw heartbeat poll]"),
    ("heartbeat", "Follow the heartbeat monitor scratch context"),
    ("heartbeat", "Read HEARTBEAT.md"),
    ("cron", "[cron:"),
    ("memory_flush", "Pre-compaction memory flush"),
)
NOTHING_ASKED = Asked()
OPENCLAW_SYSTEM = re.compile(r"(?i)\bopenclaw\b")
OPENCLAW_SYSTEM_CHARACTERS = 400
SUMMARISER_PREFIX = "You are a context summarization assistant"


def is_internal(message: Message) -> bool:
    """Return whether a message is internal context that the client adds to a single request."""
    return message.get("role") == "user" and _starts_with(message, INTERNAL_CONTEXT)


def _starts_with(message: Message, prefix: str) -> bool:
    return content_text(message.get("content")).lstrip().startswith(prefix)


def spoken(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without the client's internal context."""
    return [message for message in messages if not is_internal(message)]


def user_words(message: Message) -> str:
    """Return a user message's text without the client's additions.

    Removed are the date, the note of a queued message, the request to resume and the Runtime line.
    """
    return "\n\n".join(_paragraphs(message))


def _paragraphs(message: Message) -> list[str]:
    text = content_text(message.get("content")).strip()
    before, _, last = text.rpartition("\n")
    if last.startswith(RUNTIME_PREFIX):
        text = before.rstrip()
    if not text.startswith("["):
        return [text]
    if match := DATE_PREFIX.match(text):
        text = text[match.end() :]
    match = QUEUED_PREFIX.match(text)
    if match is None:
        return [text]
    return [part for part in text[match.end() :].split("\n\n") if not part.startswith(RESUME_PREFIX)]


def side_kind(messages: Sequence[Message], asked: Asked = NOTHING_ASKED) -> SideKind | None:
    """Return the kind of a client's own turn, or None for a user's turn."""
    heard = spoken(messages)
    if call := client_call(heard, asked):
        return call
    first = heard[0] if heard else {}
    if first.get("role") in ("system", "developer") and _starts_with(first, SUMMARISER_PREFIX):
        return "compaction"
    users = [message for message in heard if message.get("role") == "user"]
    if not users:
        return None
    if kind := message_side_kind(users[-1]):
        return kind
    match = RUNTIME_KEY.search(_runtime_line(users[0]))
    return SIDE_KEYS[match.group(1)] if match else None


def message_side_kind(message: Message) -> SideKind | None:
    """Return the kind of a client's own text, or None for a user's words.

    A queued message is context for the text after it, which decides if there is one.
    """
    queued, *active = _paragraphs(message) or [""]
    return next(
        (kind for text in active or [queued] for kind, prefix in SIDE_PREFIXES if text.startswith(prefix)), None
    )


def answers_own_text(messages: Sequence[Message], reply: int) -> bool:
    """Return whether the client, not the user, began the exchange of the assistant message at ``reply``."""
    for message in reversed(messages[:reply]):
        if message.get("role") == "user" and not is_internal(message):
            return message_side_kind(message) is not None
    return False


def runtime_session(messages: Sequence[Message]) -> str | None:
    """Return the session id in the Runtime line at the end of OpenClaw's first user message, or None.

    The system message says whether the client is OpenClaw. The users of other clients may paste such a line.
    """
    first = messages[0] if messages else {}
    opening = content_text(first.get("content"))[:OPENCLAW_SYSTEM_CHARACTERS]
    if first.get("role") not in ("system", "developer") or not OPENCLAW_SYSTEM.search(opening):
        return None
    for message in messages:
        if message.get("role") == "user":
            match = RUNTIME_SESSION.search(_runtime_line(message))
            return match.group(1) if match else None
    return None


def _runtime_line(message: Message) -> str:
    last = content_text(message.get("content")).rstrip().rpartition("\n")[2]
    return last if last.startswith(RUNTIME_PREFIX) else ""


@dataclass(frozen=True)
class Following:
    """What followed a reply in a request.

    Attributes:
        messages: of the user and of tools, up to the next assistant message.
        end: position of that assistant message; None if the request ends before one.
    """

    messages: list[Message]
    end: int | None = None


def following(messages: Sequence[Message], reply: int, side_replies: Collection[int] = ()) -> Following:
    """Return what followed the reply at position ``reply``.

    Internal context is left out. So are the client's own exchanges: those that begin with one of its own texts, and those
    that end in an assistant message at one of the positions ``side_replies``.
    """
    found: list[Message] = []
    kept = 0
    own_exchange = False
    for position in range(reply + 1, len(messages)):
        message = messages[position]
        role = message.get("role")
        if role == "assistant":
            if position in side_replies:
                del found[kept:]
            elif not own_exchange:
                return Following(found, position)
            kept = len(found)
        elif role == "user" and not is_internal(message):
            own_exchange = message_side_kind(message) is not None
        if role in ("user", "tool") and not own_exchange and not is_internal(message):
            found.append(message)
    return Following(found)


def reads_like_own_request(messages: Sequence[Message]) -> bool:
    """Return whether the last user message may be a client's own request (`openclaw.messages.own_requests`)."""
    said = next((message for message in reversed(messages) if message.get("role") == "user"), None)
    return said is not None and own_request(user_words(said))
