"""Replies that are broken, whatever they say.

The rules are those of the runtime for turns that must not be trained (`openclaw.judge.hygiene`), on text instead of tokens,
because other servers send no tokens.
"""

from __future__ import annotations

import re

from openclaw.judge.hygiene import is_repetitive

_WORD = re.compile(r"\w+|[^\w\s]")


def defect(text: str, finish_reason: str, calls: int) -> str | None:
    """Return why a reply is broken: ``empty``, ``truncated`` or ``repetitive``; None for a sound one.

    Args:
        text: of the reply, without its thought.
        finish_reason: as the server gave it.
        calls: number of tool calls in it.
    """
    if finish_reason == "length":
        return "truncated"
    if not text.strip():
        return None if calls else "empty"
    numbers: dict[str, int] = {}
    words = [numbers.setdefault(word.lower(), len(numbers)) for word in _WORD.findall(text)]
    if is_repetitive(words) or is_repetitive([ord(letter) for letter in text if not letter.isspace()]):
        return "repetitive"
    return None
