"""Lines of an event stream. httpx splits text at U+2028, U+0085 and the like as well, which a JSON string may hold as they are."""

from __future__ import annotations


class EventLines:
    r"""The lines of a stream whose bytes come in parts; only a line feed ends a line.

    Example:
        >>> lines = EventLines()
        >>> lines.of("data: {\"text\": \"a\u2028b\"}\nda".encode())
        ['data: {"text": "a\u2028b"}']
        >>> lines.of(b"ta: 1\n\n")
        ['data: 1', '']
    """

    def __init__(self) -> None:
        self._rest = b""

    def of(self, part: bytes) -> list[str]:
        """Return the lines that ``part`` completes."""
        *whole, self._rest = (self._rest + part).split(b"\n")
        return [line.removesuffix(b"\r").decode() for line in whole]
