"""A text on one line, as a terminal shows it."""

from __future__ import annotations


def preview(text: str, width: int) -> str:
    """Return ``text`` on one line of at most ``width`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
