"""What spares a text the slow patterns hides no secret from them."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from openclaw.ledger.redact import BEFORE_SECRET, CONTEXT, PLACEHOLDERS, WORD, SecretFinder, looks_random

FINDER = SecretFinder()
PATTERNS = [(kind, pattern) for kind, patterns in FINDER._patterns.items() for pattern in patterns]
LONG_WORD = re.compile(f"{WORD}{{20,}}={{0,2}}")
PIECES = ["API_KEY", "token", "client_secret", "Authorization", "bearer", "sk-", "q8Zr7Wb1Xk2Lm9Np4Tv6", "a1", "Zq9"]
TEXTS = st.lists(st.sampled_from([*PIECES, ":", "=", '"', "'", " ", "\n", "-", "/", "é"]), max_size=14).map("".join)


@pytest.mark.parametrize(("kind", "pattern"), PATTERNS, ids=[f"{kind}-{n}" for n, (kind, _) in enumerate(PATTERNS)])
def test_whatever_a_pattern_matches_is_found(kind: str, pattern: re.Pattern[str]) -> None:
    @settings(max_examples=12, database=None)
    @given(st.from_regex(pattern, fullmatch=True, alphabet=st.characters(codec="latin-1")))
    def holds(secret: str) -> None:
        assume(not PLACEHOLDERS.search(secret))
        text = f"see\n{secret}\nthere"
        assume(any(match.span() == (4, 4 + len(secret)) for match in pattern.finditer(text)))
        assert (4, 4 + len(secret), kind) in set(FINDER(text))

    holds()


def plain(text: str) -> set[tuple[int, int, str]]:
    """Long words that look random: those that begin as a key does, and those behind a telling name."""
    found = set()
    for match in LONG_WORD.finditer(text):
        word, start = match.group(), match.start()
        if word.startswith("sk-") and looks_random(word[3:]):
            found.add((start, match.end(), "api_key"))
        elif BEFORE_SECRET.search(text, max(0, start - CONTEXT), start) and looks_random(word):
            found.add((start, match.end(), "assignment"))
    return found


@settings(max_examples=300)
@given(TEXTS)
@example("API_KEY:bearerq8Zr7Wb1Xk2Lm9Np4Tv6Zq9")
@example("API_KEY: token q8Zr7Wb1Xk2Lm9Np4Tv6Zq9")
def test_long_words_are_found_as_by_a_look_at_each(text: str) -> None:
    assert {span[:2] for span in plain(text)} <= {span[:2] for span in FINDER(text)}
