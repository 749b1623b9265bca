"""Finding a tag or a stop string in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


def held_back(text: str, tags: Sequence[str]) -> int:
    """Return the length of the longest end of ``text`` that is the beginning of a tag, but not a whole one."""
    longest = min(len(text), max(map(len, tags), default=0) - 1)
    for length in range(longest, 0, -1):
        end = text[-length:]
        if any(len(tag) > length and tag.startswith(end) for tag in tags):
            return length
    return 0


class StopStrings:
    """Ends a reply before the first stop string, which is not part of the text.

    What could be the beginning of a stop string is held back; ``passed`` counts the characters that were not. Owns the state of one reply.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False
        self.passed = 0

    def push(self, text: str) -> str:
        """Return the text that is certain to come before any stop string; nothing once one was found."""
        text = self._scan(text)
        self.passed += len(text)
        return text

    def _scan(self, text: str) -> str:
        if self.found or not self._stops:
            return "" if self.found else text
        text = self._held + text
        matches = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if matches:
            # The match that ends first: the one that would have been seen first, had the text come by characters.
            self.found, self._held = True, ""
            return text[: min(matches)[1]]
        keep = held_back(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """Return what was held back, when no stop string came of it."""
        text, self._held = self._held, ""
        self.passed += len(text)
        return text
