"""The linear patterns, and what spares a text the slow ones, hide no secret that backtracking patterns find."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from openclaw.privacy.secret_finder import BEFORE_SECRET, CONTEXT, WORD, SecretFinder, looks_random
from tests.helpers.backtracking_secrets import PATTERNS, find

FINDER = SecretFinder()
EACH = [(kind, pattern) for kind, patterns in PATTERNS.items() for pattern in patterns]
LONG_WORD = re.compile(f"{WORD}{{20,}}={{0,2}}")
PIECES = ["API_KEY", "token", "client_secret", "Authorization", "bearer", "sk-", "q8Zr7Wb1Xk2Lm9Np4Tv6", "a1", "Zq9"]
TEXTS = st.lists(st.sampled_from([*PIECES, ":", "=", '"', "'", " ", "\n", "-", "/", "é"]), max_size=14).map("".join)
ASCII = st.characters(codec="ascii")
BETWEEN = st.sampled_from(["", " ", "\n", ",", "-", "_", "a", '"', "=", ".", "://u:", "@", "x = ", "API_KEY=", "sk-"])


@pytest.mark.parametrize(("kind", "pattern"), EACH, ids=[f"{kind}-{n}" for n, (kind, _) in enumerate(EACH)])
def test_whatever_a_pattern_matches_is_found(kind: str, pattern: re.Pattern[str]) -> None:
    """Also between other characters, several in a row, and cut at any place."""
    secrets = st.from_regex(pattern, fullmatch=True, alphabet=ASCII)

    @settings(max_examples=12, database=None)
    @given(st.lists(st.tuples(BETWEEN, secrets, BETWEEN), min_size=1, max_size=3), st.integers(0, 20))
    def holds(parts: list[tuple[str, str, str]], cut: int) -> None:
        whole = "".join(before + secret + after for before, secret, after in parts)
        assume(len(whole) < 1000)  # counts of more than 1000 have no upper bound in RE2
        for text in (whole, whole[: len(whole) - cut]):
            assert set(FINDER(text)) == set(find(text))

    holds()


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from([*PIECES, "\u00a0", "\u3000", "鍵", "\ud83d", *":=\"' \n-/é@", "://u:pw1@h"]), max_size=14)
)
@example(["鍵", "API_KEY", ":", "\u3000", "q8Zr7Wb1Xk2Lm9Np4Tv6", "é"])
def test_other_alphabets_hide_nothing(parts: list[str]) -> None:
    """Positions count characters, and a secret among other letters is found as before."""
    text = "".join(parts)
    assert set(FINDER(text)) == set(find(text))


@pytest.mark.parametrize("neighbour", ["é", "鍵", "\u3000", "😀", "\ud83d"])
def test_a_secret_directly_beside_another_alphabet_is_found(neighbour: str) -> None:
    for secret in ("glpat-" + "a1B2" * 6, "ghp_" + "a1B2" * 9, "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMj.dozjgNryP4"):
        text = f"{neighbour * 3}{secret}{neighbour * 2}"
        assert {span[:2] for span in FINDER(text)} == {(3, 3 + len(secret))}


def test_ordinary_texts_give_the_same(repository: Path) -> None:
    for path in [*repository.glob("slime/*/*.py"), *repository.glob("instructions/*.md")]:
        text = path.read_text()
        assert set(FINDER(text)) == set(find(text)), path


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
