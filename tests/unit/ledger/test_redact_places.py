"""Where a secret may stand: in names of fields, template keywords, session ids, behind ``data:``; and our own keys."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from lab.testkit.ledger_records import make_turn
from openclaw.ledger.store import Ledger
from openclaw.privacy.redactor import Redactor
from openclaw.privacy.secret_finder import OwnKeyFinder, kept_id, secret_values
from openclaw.sessions.follow import stated_identity

GITHUB = "ghp_" + "a1B2" * 9
OTHER = "ghp_" + "c3D4" * 9
PICTURE = "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUg" * 4 + "=="
OWN = "4f1c9a7e2b8d6035f1e2d3c4b5a69788"
BASE64_KEY = "q8Zr7Wb1/Xk2Lm9+Np4Tv6=="


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    return Redactor("secrets")


@pytest.mark.parametrize(
    "text", [f"data: {{{GITHUB}}}", f"data:text/plain,{GITHUB}", f"data:image/png;base64,{GITHUB}"]
)
def test_text_behind_data_is_text(redactor: Redactor, text: str) -> None:
    for message in ({"content": text}, {"content": [{"type": "text", "text": text}]}):
        assert GITHUB not in json.dumps(redactor.messages([message]))


def test_only_a_file_in_a_media_part_is_spared(redactor: Redactor) -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "file", "file": {"file_data": PICTURE}},
    ]
    assert redactor.messages([{"role": "user", "content": parts}])[0]["content"] == parts
    linked = {"type": "image_url", "image_url": {"url": f"https://host/?token={GITHUB}"}}
    broken = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{GITHUB} and words: {GITHUB}"}}
    odd = {"type": [GITHUB], "text": "x"}
    assert GITHUB not in json.dumps(redactor.messages([{"content": [linked, broken, odd]}]))


def test_names_of_fields_are_redacted_and_stay_apart(redactor: Redactor) -> None:
    message = {"role": "user", GITHUB: 1, "deep": {GITHUB: "a", OTHER: "b"}, "name": GITHUB, "tool_call_id": GITHUB}
    redacted = redactor.messages([message])[0]
    mark = "[REDACTED:github_token]"
    assert redacted == {
        **{"role": "user", mark: 1, "deep": {mark: "a", f"{mark}'": "b"}},
        **{"name": mark, "tool_call_id": mark},
    }


def test_template_keywords_are_redacted_and_cost_the_ids(tmp_path: Path, redactor: Redactor) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", redaction=redactor)
    ledger.turns.record(make_turn("kwargs", chat_template_kwargs={"note": GITHUB, OTHER: True}))
    turn = ledger.turns.get("kwargs")
    assert turn.chat_template_kwargs == {"note": "[REDACTED:github_token]", "[REDACTED:github_token]": True}
    assert (turn.reason, turn.prompt_ids, turn.response_ids) == ("redacted", [], [])


def test_a_session_named_by_a_secret_is_kept_under_a_digest() -> None:
    stated = stated_identity({"x-session-id": GITHUB}, None, [])
    assert stated.session_id == kept_id(GITHUB) == stated_identity({}, GITHUB, []).session_id
    assert GITHUB not in kept_id(GITHUB)
    assert kept_id(GITHUB) != kept_id(OTHER)
    assert kept_id(kept_id(GITHUB)) == kept_id(GITHUB)
    for ordinary in ("s-1", "123e4567-e89b-12d3-a456-426614174000", "agent:main:ses_0123456789abcdefABCDEF"):
        assert kept_id(ordinary) == ordinary


@pytest.mark.parametrize("key", [OWN, BASE64_KEY, "correct,horse!battery;staple", "p@ss:word/with?odd=chars&more"])
@pytest.mark.parametrize("known", ["value", "digest"])
@pytest.mark.parametrize(
    "around", ["my key is {}.", "OPENCLAW_API_KEY={}", "é Bearer '{}'", "(see {})", "{}", "鍵 {} 鍵"]
)
def test_the_servers_own_keys_are_redacted(key: str, known: str, around: str) -> None:
    if known == "digest" and key[0] in "cp" and "=" in around:
        pytest.skip("a key with odd characters is found by its digest only as a word of its own")
    digest = hashlib.sha256(key.encode()).digest()
    finder = (
        OwnKeyFinder([key]) if known == "value" else OwnKeyFinder(is_key=lambda w: hashlib.sha256(w).digest() == digest)
    )
    redacted = Redactor("secrets", own_keys=finder).text(around.format(key))
    assert key not in redacted
    assert "own_key" in redacted or "assignment" in redacted
    assert redacted.startswith(around.split("{}")[0])


def test_words_that_are_no_key_stay() -> None:
    text = "the quick brown fox, https://host/a-long-path-of-words?x=1, " + OWN.upper()
    finder = OwnKeyFinder(["short", OWN], lambda word: False)
    assert Redactor("secrets", own_keys=finder).text(text) == text


def test_the_environments_secrets_are_known_by_their_names() -> None:
    environment = {"SGLANG_API_KEY": "a", "HF_TOKEN": "b", "OPENCLAW_TLS_KEY": "/path", "TOKENIZERS_PARALLELISM": "1"}
    assert secret_values(environment) == ["a", "b"]
