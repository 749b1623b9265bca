"""A JSON value that nests deeply."""

from __future__ import annotations

from typing import Any


def nested(levels: int) -> Any:
    """Return 1 inside ``levels`` objects."""
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value
