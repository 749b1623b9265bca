"""A tool call's arguments: text that a model or a client wrote, read as JSON where that is safe.

Guarantees: whatever the text, no reader raises or recurses deeply. Pure functions.
"""

from __future__ import annotations

import json
from typing import Any

DEEPEST_ARGUMENTS = 100
SQUARE = bytes.maketrans(b"{}", b"[]")
NO_BRACKETS = bytes(set(range(256)) - set(b"{}[]"))
HALF_CHARACTER = "\\ud"
"""Begins the escape of a surrogate; one without its other half is no text that can be tokenised."""


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
    """Return the value of a tool call's arguments; text that is no JSON, or cannot be rendered as such, stays text."""
    try:
        value = json.loads(text)
        if HALF_CHARACTER in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return text
    deepest = nesting(text.encode("utf-8", "surrogatepass"), DEEPEST_ARGUMENTS)
    return text if deepest > DEEPEST_ARGUMENTS else value
