"""No text, however shaped, makes redaction slow or stalls the event loop meanwhile."""

from __future__ import annotations

import asyncio
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openclaw.privacy.redactor import OVERLAP, WINDOW, Redactor, windows
from openclaw.privacy.secret_finder import ANCHORS

MEGABYTE = 1_000_000
REPEATED = (
    "-----BEGIN PRIVATE KEY-----", "-----BEGIN RSA ", "eyJ", "eyJaaaaaaaa.eyJ", "sk-sk-sk-", "sk-T3BlbkFJ", "://", "://a:", "://a:b@",
    ":=", "API_KEY=", "token: ", "a3t", "AKIA", "aws ", "aws key '", "xoxb-1-", "//a/:_authToken=", "glagent-", "MNO.", "SG.", "\\n",
    "https://hooks.slack.com/services/Ta/Ba", "data:", "é",
)  # fmt: skip
LITERALS = [
    *(anchor for anchors in ANCHORS.values() for anchor in anchors),
    "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "eyJaaaaaaaa", "key", "'", "a" * 20, "A1b2" * 10, "T3BlbkFJ",
    "API_KEY", "TOKEN", ":", "=", "://", "@", ".", "-", "-us1", " ", "\n", "é",
]  # fmt: skip


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    return Redactor("secrets")


def long_text(pieces: str, length: int) -> str:
    """All anchors, so that no search is spared, then the pieces again and again."""
    anchors = " ".join(anchor for each in ANCHORS.values() for anchor in each)
    return f"{anchors} @ " + (pieces * (length // len(pieces) + 1))[:length]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("pieces", REPEATED)
def test_a_megabyte_takes_seconds(redactor: Redactor, pieces: str) -> None:
    """Backtracking takes hours for many of these; the bound is that of the whole test."""
    redactor.text(long_text(pieces, MEGABYTE))


@pytest.mark.timeout(280)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(LITERALS), min_size=1, max_size=12).map("".join))
def test_what_the_patterns_literals_make_takes_seconds(redactor: Redactor, pieces: str) -> None:
    redactor.text(long_text(pieces, MEGABYTE // 4))


def test_a_long_private_key_is_found_whole(redactor: Redactor) -> None:
    body = "MIIEpAIBAAKCAQEA7bq1XgEo+/Zk3v9QwErTyUiOpAsDfGhJkLzXcVbNm0123456\n" * 400
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{body}-----END RSA PRIVATE KEY-----"
    assert redactor.text(f"Here: {key} and {key}.") == "Here: [REDACTED:private_key] and [REDACTED:private_key]."
    assert redactor.text(f"Here: {key[:20000]}") == "Here: [REDACTED:private_key]"


def test_no_private_key_is_taken_for_a_placeholder(redactor: Redactor) -> None:
    key = "-----BEGIN PRIVATE KEY-----\n" + "MIIEpAIBxXxAAKCAQEA7bq1XgEo+/pwd\n" * 9 + "-----END PRIVATE KEY-----"
    assert redactor.text(key) == "[REDACTED:private_key]"
    placeholder = key.replace("MIIE", "your-key")
    assert redactor.text(placeholder) == placeholder


async def test_the_event_loop_runs_while_a_text_is_redacted(redactor: Redactor) -> None:
    text = long_text("-----BEGIN PRIVATE KEY-----", 300_000) + long_text("sk-sk-sk-", 300_000)
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        redacting = asyncio.get_running_loop().run_in_executor(None, lambda: [redactor.text(text) for _ in range(8)])
        rounds = 0
        while not redacting.done():
            await asyncio.sleep(0.001)
            rounds += 1
        await redacting
    finally:
        sys.setswitchinterval(before)
    assert rounds > 20, "a search kept the interpreter to itself"


@settings(max_examples=200)
@given(
    st.text("ab1 \n", max_size=5000) | st.integers(0, 5000).map("x".__mul__), st.integers(0, 5000), st.integers(1, 256)
)
def test_every_value_lies_in_a_window(text: str, start: int, length: int) -> None:
    end = min(len(text), start + length)
    found = list(windows(text))
    assert any(low <= start and end <= high for low, high in found) or start >= len(text)
    assert all(high - low <= WINDOW for low, high in found)
    assert sum(high - low for low, high in found) <= len(text) * WINDOW / (WINDOW - OVERLAP * 5 / 4) + WINDOW
