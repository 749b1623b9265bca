"""The one place where a prompt holds what the user did not type: a hint at the end of the last user message.

The judge's hint for a teacher and a person's lessons (`openclaw.lessons`) both stand there. Pure functions.
"""

from __future__ import annotations

from typing import Any

HINT_TAG = "\n\n[user's hint / instruction]\n"


def append_hint(messages: list[dict[str, Any]], hint: str) -> list[dict[str, Any]]:
    """Return a copy of ``messages`` with ``hint`` at the end of the last user message; the teacher's view of the turn.

    Raises:
        ValueError: when no message has the role ``user``.
    """
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        if message.get("role") != "user":
            continue
        content: str | list[dict[str, Any]] = message.get("content") or ""
        if isinstance(content, list):
            content = [*content, {"type": "text", "text": HINT_TAG + hint}]
        else:
            content = content + HINT_TAG + hint
        return [*messages[:position], {**message, "content": content}, *messages[position + 1 :]]
    raise ValueError("no user message to carry the hint; pass the turn's request messages")
