"""Finds keys, tokens, private keys and passwords in URLs.

Guarantees: time grows linearly with the text, whatever it contains. RE2 makes every long search; Python only looks at
what RE2 found, once. A search on another thread leaves the interpreter to the event loop. Stateless after construction.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

from openclaw.ledger.linear_pattern import LinearPattern
from openclaw.ledger.secret_patterns import ANCHORS, FOLDED, SPACE, WORD, all_patterns

Span = tuple[int, int, str]
LEAST_ENTROPY_BITS = 3.5
SHORTEST = 8
"""Characters: no pattern matches a shorter text."""
PARTS = {
    "discord": LinearPattern(r"\.[a-zA-Z\d_-]{6}\.[a-zA-Z\d_-]{27}"),
    "mailchimp": LinearPattern(r"-us[0-9]"),
    "telegram_token": LinearPattern(r":[0-9A-Za-z_-]{35}"),
}
"""For kinds without anchors: a pattern that is part of every match and faster to search."""
URL_PASSWORD = LinearPattern(rf"://[^{SPACE}:/?#@\"'<>]+:([^{SPACE}:/?#@\"'<>{{}}$*]+)@", groups=True)
LONG_KEY = LinearPattern(rf"sk-{WORD}{{17,}}={{0,2}}")
IS_WORD = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+/.~-")
# A long word after a colon or equals sign, whose name may be that of a secret.
ASSIGNED = LinearPattern(
    rf"[YTNDytnd\"'{SPACE}][:=][{SPACE}]*[\"']?(?:(?i:bearer|basic|token)(?:[{SPACE}]+[\"']?|[\"']))?({WORD}{{20,}}={{0,2}})",
    groups=True,
)
# The text before a long word that is a secret if it looks random.
BEFORE_SECRET = re.compile(
    r"(?:(?:(?:API_?KEY|SECRET|SECRET_KEY|ACCESS_KEY|TOKEN|PASSWORD|PASSWD)"
    r"|(?i:api[_-]?key|access[_-]?token|secret[_-]?key|client[_-]?secret|auth[_-]?token))[\"']?\s*[:=]"
    r"|(?i:authorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic|token)))\s*[\"']?\Z"
)
CONTEXT = 48
"""Characters before a long word that may name it."""
PLACEHOLDERS = LinearPattern(
    r"(?i)example|your|xxx|pass(?:word|wd)?\z|^secret\z|^token\z|^pw\z|^pwd\z|\.\.\.|changeme|dummy|redacted"
)
LONG = 100
LONG_PLACEHOLDERS = LinearPattern(r"(?i)example|your[^a-z0-9+/]|xxxxxx|\.\.\.|changeme|dummy|redacted")
"""For what is longer than `LONG` bytes: one in twenty private keys has three x in a row by chance."""
LOOKED_AT = 4096
"""Characters of a word that tell whether it looks random."""


def is_placeholder(secret: bytes) -> bool:
    """Return whether what has the form of a secret only stands for one."""
    return (PLACEHOLDERS if len(secret) <= LONG else LONG_PLACEHOLDERS).search(secret) is not None


def looks_random(text: str) -> bool:
    """Return whether a value looks random: letters and digits, at least `LEAST_ENTROPY_BITS` per character."""
    if is_placeholder(text.encode()):
        return False
    text = text[:LOOKED_AT]
    if not re.search(r"\d", text) or not re.search(r"[A-Za-z]", text):
        return False
    counts = Counter(text).values()
    entropy = -sum(count / len(text) * math.log2(count / len(text)) for count in counts)
    return entropy >= min(LEAST_ENTROPY_BITS, math.log2(len(text)) - 0.5)


class SecretFinder:
    """Finds secrets; see the module's guarantees."""

    def __init__(self) -> None:
        self._patterns = all_patterns()

    def __call__(self, text: str) -> Iterator[Span]:
        """Yield (start, end, kind)."""
        if len(text) < SHORTEST:
            return iter(())
        data = text.encode("utf-8", "replace")  # a lone surrogate stays one character
        return in_characters(data, len(text), [*self._known(text, data), *self._named(text, data)])

    def _known(self, text: str, data: bytes) -> Iterator[Span]:
        """Yield what has the form of a known kind."""
        folded = text.casefold()
        for kind, patterns in self._patterns.items():
            anchors = ANCHORS.get(kind)
            if anchors is not None and not any(anchor in (folded if kind in FOLDED else text) for anchor in anchors):
                continue
            if kind in PARTS and not PARTS[kind].search(data):
                continue
            for pattern in patterns:
                for start, end in pattern.every(data):
                    if not is_placeholder(data[start:end]):
                        yield start, end, kind

    def _named(self, text: str, data: bytes) -> Iterator[Span]:
        """Yield passwords in URLs, words that begin as a key does, and random words behind a telling name."""
        for start, end in URL_PASSWORD.every(data) if "@" in text else ():
            if not is_placeholder(data[start:end]):
                yield start, end, "url_password"
        for start, end in LONG_KEY.every(data) if "sk-" in text else ():
            if (not start or data[start - 1] not in IS_WORD) and looks_random(data[start + 3 : end].decode()):
                yield start, end, "api_key"
        position = 0
        while word := ASSIGNED.search(data, position):
            position, end = word  # the word itself may hold the next name
            before = data[max(0, position - 4 * CONTEXT) : position].decode(errors="ignore")[-CONTEXT:]
            if BEFORE_SECRET.search(before) and looks_random(data[position:end].decode()):
                yield position, end, "assignment"


def in_characters(data: bytes, characters: int, spans: Iterable[Span]) -> Iterator[Span]:
    """Yield spans of encoded text as spans of its characters, in order."""
    if len(data) == characters:
        yield from spans
        return
    last = at = 0
    for start, end, kind in sorted(spans):
        at += len(data[last:start].decode())
        last = start
        yield at, at + len(data[start:end].decode()), kind


@cache
def secret_finder() -> SecretFinder:
    """Return the one finder of this process; loading its patterns takes a while once."""
    return SecretFinder()
