"""Finds the server's own keys in a text, for a redactor: those it knows by value, and those it knows by digest.

Guarantees: a key of `SHORTEST_KEY` to `LONGEST_KEY` characters is found as a word of its own, also in quotes, in a URL
and behind an equals sign. Time grows linearly with the text. Keeps no key that it was not given by value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from openclaw.ledger.linear_pattern import LinearPattern
from openclaw.ledger.secret_finder import Span, in_characters
from openclaw.ledger.secret_patterns import SPACE

KIND = "own_key"
SHORTEST_KEY = 16
SHORTEST_VALUE = 12
"""A value known in plain is found wherever it stands, so a short one would spoil ordinary words."""
SECRET_NAME = re.compile(r"(?:^|_)(?:API_KEY|ACCESS_KEY|SECRET_KEY|SECRET|TOKEN|PASSWORD)$")
"""Variables of the environment that hold a key of this server, its engines or its services."""
LONGEST_KEY = 256
WORDS = (
    LinearPattern(rf"[A-Za-z0-9_-]{{{SHORTEST_KEY},}}"),
    LinearPattern(rf"[A-Za-z0-9_+/.~-]{{{SHORTEST_KEY},}}={{0,2}}"),
    LinearPattern(rf"[^{SPACE}\"'`<>]{{{SHORTEST_KEY},}}"),
)
"""What may be a whole key: hexadecimal or URL-safe, base64, anything without spaces and quotes."""
PUNCTUATION = b".,;:!?()[]{}"


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """Return the values of the variables whose name says that they hold a secret."""
    return [value.strip() for name, value in environment.items() if SECRET_NAME.search(name)]


class OwnKeyFinder:
    """Finds the keys; see the module's guarantees."""

    def __init__(self, values: Iterable[str] = (), is_key: Callable[[bytes], bool] | None = None) -> None:
        """Take the keys known by value, and what says whether an encoded word is one of the others."""
        self._values = [value.encode() for value in values if len(value) >= SHORTEST_VALUE]
        self._is_key = is_key

    def __call__(self, text: str) -> Iterator[Span]:
        """Yield (start, end, kind)."""
        if len(text) < SHORTEST_VALUE or not (self._values or self._is_key):
            return iter(())
        data = text.encode("utf-8", "replace")
        return in_characters(data, len(text), set(self._found(data)))

    def _found(self, data: bytes) -> Iterator[Span]:
        for value in self._values:
            start = data.find(value)
            while start >= 0:
                yield start, start + len(value), KIND
                start = data.find(value, start + len(value))
        if self._is_key is None:
            return
        for pattern in WORDS:
            for start, end in pattern.every(data):
                word = data[start:end]
                bare = word.strip(PUNCTUATION)
                at = start + word.find(bare)
                for begin, candidate in {(start, word), (at, bare)}:
                    if SHORTEST_KEY <= len(candidate) <= LONGEST_KEY and self._is_key(candidate):
                        yield begin, begin + len(candidate), KIND
