"""A message that is only a thumb, up or down: a person's opinion, not words for a judge.

Guarantees: pure functions, in time linear in the text. Thumbs in both directions, or beside any word, are none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from groundwork.chat_messages import Message
from openclaw.messages.classify import is_internal, user_words
from openclaw.messages.text import content_text

Thumbs = Literal["up", "down"]


def _thumbs(emoji: str, names: str, signs: str) -> re.Pattern[str]:
    """Return the pattern of one thumb or more: emoji in any skin tone, shortcodes of chats, or a one with its sign."""
    tone = "[\U0001f3fb-\U0001f3ff]?[\ufe0e\ufe0f]?"
    thumb = rf"{emoji}{tone}|:(?:{names}):(?::skin-tone-[1-6]:)?|(?<!\S)[{signs}]1(?!\d)"
    return re.compile(rf"(?:(?:{thumb})[\s!.,\u200d\u200b！。，]*)+")


UP = _thumbs("\U0001f44d", r"\+1|thumbs_?up|thumbup|like", "+\uff0b")
DOWN = _thumbs("\U0001f44e", "-1|thumbs_?down|thumbdown|dislike", "\\-\u2212\u2013\uff0d")
NUMBER = re.compile(r"[\s!.,！。，+\-\uff0b\u2212\u2013\uff0d1]*")
QUESTION = re.compile(r"[?？؟][\s*_)\"'”»]*\Z")


def thumb_of(text: str, reply: str = "") -> Thumbs | None:
    """Return the thumb that ``text`` is, or None if it is anything else.

    ``+1`` and ``-1`` after a ``reply`` that ends in a question are an answer.
    """
    words = text.strip()
    if NUMBER.fullmatch(words) and QUESTION.search(reply[-8:]):
        return None
    return "up" if UP.fullmatch(words) else "down" if DOWN.fullmatch(words) else None


def without_thumbs(messages: Sequence[Message], reply: Message) -> tuple[list[Message], Thumbs | None]:
    """Return a next state without the user's messages that are only a thumb, and the last of these thumbs, if any.

    Args:
        messages: the next state.
        reply: that it followed.
    """
    answer = content_text(reply.get("content"))
    kept: list[Message] = []
    last: Thumbs | None = None
    for message in messages:
        spoken = message.get("role") == "user" and not is_internal(message)
        thumb = thumb_of(user_words(message), answer) if spoken else None
        if thumb is None:
            kept.append(message)
        else:
            last = thumb
    return kept, last
