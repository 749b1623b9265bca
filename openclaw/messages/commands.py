"""Commands to the gateway inside a conversation: a message of the user that is ``/rl`` and words, and its answer.

Guarantees: pure functions of a request's messages. A command is a user message of its own: its only text, without the
client's reminders and prefixes, begins with ``/rl``. It follows a finished reply, or opens the conversation; behind a tool
call or a tool's result the same words are none, because a client may put a result's text into a user message. `hear` removes
the commands and their answers, so that the rest is the conversation as it were without them: an answer is known by
`ANSWER`, a command whose answer the client dropped goes alone, and one that a model answered while commands were off stays.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from groundwork.chat_messages import Message
from openclaw.messages.classify import is_internal, user_words
from openclaw.messages.text import content_text

ANSWER = "[OpenClaw-RL] "
"""How every answer of the gateway itself begins."""
MAX_CHARACTERS = 1000
"""Of a command's words; longer ones were hardly typed."""
COMMAND = re.compile(r"/rl(?:\s+(.*))?", re.IGNORECASE | re.DOTALL)
REMINDERS = ("system-reminder", "environment_context")
"""Tags that clients put around what they add to a user's message."""


@dataclass(frozen=True)
class Heard:
    """A request's messages without commands.

    Attributes:
        messages: without earlier commands and their answers.
        command: the words after ``/rl`` of the message that asks, or None if it is no command.
        position: of that message in ``messages``.
    """

    messages: list[Message]
    command: str | None = None
    position: int = -1

    @property
    def before(self) -> list[Message]:
        """The messages without the command that asks."""
        return [message for position, message in enumerate(self.messages) if position != self.position]


def hear(messages: Sequence[Message]) -> Heard:
    """Return the messages without commands, and the command that the last one is, if any."""
    voices = [position for position, message in enumerate(messages) if _is_voice(message)]
    cut: set[int] = set()
    command: str | None = None
    before: Message = {}
    for number, position in enumerate(voices):
        message = messages[position]
        words = None if before.get("role") == "tool" or before.get("tool_calls") else command_words(message)
        before = message
        if words is None:
            continue
        if number + 1 == len(voices):
            command = words
        elif _is_answer(messages[voices[number + 1]]):
            cut |= {position, voices[number + 1]}
        elif messages[voices[number + 1]].get("role") == "user":
            cut.add(position)
    kept = [position for position, _ in enumerate(messages) if position not in cut]
    asks = -1 if command is None else kept.index(voices[-1])
    return Heard([messages[position] for position in kept], command, asks)


def command_words(message: Message) -> str | None:
    """Return the words of a user's message after ``/rl``, or None if it does not read like a command."""
    if message.get("role") != "user":
        return None
    content: Any = message.get("content")
    parts = [content] if isinstance(content, str) else [_text(part) for part in content or ()]
    if None in parts:
        return None
    said = [part for part in parts if part and part.strip() and not _is_reminder(part)]
    match = COMMAND.fullmatch(user_words({"role": "user", "content": said[0]}).strip()) if len(said) == 1 else None
    return (match.group(1) or "").strip() if match else None


def _is_voice(message: Message) -> bool:
    """Return whether a message is of the user, the model or a tool, not of the client."""
    return message.get("role") not in ("system", "developer") and not is_internal(message)


def _is_answer(message: Message) -> bool:
    """Return whether an assistant message is an answer to a command, or what a client keeps of a broken-off one."""
    if message.get("role") != "assistant" or message.get("tool_calls"):
        return False
    text = content_text(message.get("content")).strip()
    return not text or text.startswith(ANSWER.strip())


def _text(part: dict[str, Any]) -> str | None:
    return part.get("text") or "" if part.get("type", "text") == "text" else None


def _is_reminder(text: str) -> bool:
    """Return whether a text part is one reminder as a whole; one with a closing tag inside is somebody's text."""
    text = text.strip()
    return any(
        text.startswith(f"<{tag}>") and text.endswith(f"</{tag}>") and text.count(f"</{tag}>") == 1 for tag in REMINDERS
    )
