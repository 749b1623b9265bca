"""Text as a terminal may show it: on one line, and without control characters; times as people read them."""

from __future__ import annotations

from datetime import datetime


def preview(text: str, width: int) -> str:
    """Return ``text`` on one line of at most ``width`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


CONTROLS = {
    number: None
    for number in (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if chr(number) not in "\n\t"
}
"""C0 and C1 controls, such as a terminal's escapes, and marks that change the direction of what follows."""


def harmless(text: str) -> str:
    """Return ``text`` without control characters."""
    return text.translate(CONTROLS)


def shown_time(seconds: float | None) -> str:
    """Return a time since the epoch in local time, ``2026-11-29 12:00:00``; a dash for None."""
    return "-" if seconds is None else datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")
