"""Finds tags and stop strings in streamed text."""

from __future__ import annotations

from collections.abc import Sequence


def held_back(text: str, tags: Sequence[str]) -> int:
    """Return the length of the longest suffix of ``text`` that is a proper prefix of a tag."""
    longest = min(len(text), max(map(len, tags), default=0) - 1)
    for length in range(longest, 0, -1):
        end = text[-length:]
        if any(len(tag) > length and tag.startswith(end) for tag in tags):
            return length
    return 0


class StopStrings:
    """Cuts a reply before its first stop string.

    Text that could begin a stop string is buffered; ``passed`` counts the released characters. Owns the state of one reply.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False
        self.passed = 0

    def push(self, text: str) -> str:
        """Return the text that certainly comes before any stop string; nothing after the first one."""
        text = self._scan(text)
        self.passed += len(text)
        return text

    def _scan(self, text: str) -> str:
        if self.found or not self._stops:
            return "" if self.found else text
        text = self._held + text
        matches = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if matches:
            # Take the match that ends first, as if the text had arrived character by character.
            self.found, self._held = True, ""
            return text[: min(matches)[1]]
        keep = held_back(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return the buffered text, unless a stop string ended the reply."""
        text, self._held = self._held, ""
        self.passed += len(text)
        return text
