"""Secrets never reach the ledger's file; ordinary text, code, hashes and numbers are left alone."""

from __future__ import annotations

import importlib.util
import json
import logging
from pathlib import Path

import pytest

from groundwork.exceptions import ConfigError
from lab.testkit.ledger_records import make_turn
from openclaw.ledger.records import Feedback, TopK
from openclaw.ledger.store import Ledger
from openclaw.privacy.redactor import Redactor
from openclaw.privacy.secret_finder import looks_random

GITHUB = "ghp_" + "a1B2" * 9
SECRETS = {
    "aws": "AKIA" + "Q7Z2M5X9" * 2,
    "github": GITHUB,
    "github fine-grained": "github_pat_11ABCDE" + "x1Y2" * 10,
    "anthropic": "sk-ant-api03-" + "aB3dE6gH" * 5,
    "openai project": "sk-proj-" + "aB3dE6gH" * 5,
    "older openai": "sk-a8ZqK2mP9xLw4TvR7yBn3CdF6gHj1Qs",
    "hugging face": "hf_" + "aB3d" * 9,
    "google": "AIza" + "Sy0_B" * 7,
    "slack": "xoxb-1234567890-abcdefghij",
    "stripe": "sk_live_" + "a1B2" * 6,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEA7bq1XgEo+/\n" * 6 + "-----END RSA PRIVATE KEY-----",
    "escaped private key": "-----BEGIN PRIVATE KEY-----\\n" + "MIIEpAIBAAKCAQEA7bq1XgEo+/\\n" * 6 + "-----END PRIVATE KEY-----",
}  # fmt: skip
IN_CONTEXT = {
    "OPENAI_API_KEY={}": "q8Zr7Wb1Xk2Lm9Np4Tv6",
    '{{"client_secret": "{}"}}': "q8Zr7Wb1Xk2Lm9Np4Tv6Qs",
    "curl -H 'Authorization: Bearer {}'": "abcDEF123456.7890ghij-kl",
    "postgres://bob:{}@db/x": "hunter2",
    "git clone https://bob:{}@host.io/a": "S3cr3t-9",
}
ORDINARY = (
    "commit 4081d3a9f1c2b7e5d6a8c0f9e1b2d3c4a5f60718",
    "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "123e4567-e89b-12d3-a456-426614174000",
    "api_key = os.environ['OPENAI_API_KEY']",
    "token = tokenizer.encode(text)",
    "PASSWORD=$DB_PASSWORD",
    "API_KEY=your-api-key-here-1234567",
    "https://user:password@example.com/",
    "max_tokens=1024, token: 12345678901234567890",
    "Authorization: Bearer $TOKEN",
    "http://localhost:30000/v1",
    "-----BEGIN PRIVATE KEY----- is the header",
    "chatcmpl-0123456789abcdef0123456789abcdef",
    "3.14159265358979323846264338327950288",
    "data-testid=sk-button-primary-large",
    "SECRET_KEY = get_random_secret_key()",
    "AWS_SECRET_ACCESS_KEY: ${{ secrets.AWS_SECRET_ACCESS_KEY }}",
)


@pytest.fixture(scope="module")
def redactor() -> Redactor:
    return Redactor("secrets")


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS.keys())
def test_secret_is_replaced_and_nothing_else(redactor: Redactor, secret: str) -> None:
    before, after = redactor.text(f"Use {secret} please.").split("[REDACTED:")
    assert before == "Use "
    assert after.endswith("] please.")


@pytest.mark.parametrize(("text", "secret"), IN_CONTEXT.items())
def test_value_is_replaced_where_its_name_gives_it_away(redactor: Redactor, text: str, secret: str) -> None:
    redacted = redactor.text(text.format(secret))
    assert secret not in redacted
    assert "[REDACTED:" in redacted
    assert redacted.startswith(text.split("{}")[0].replace("{{", "{"))


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays(redactor: Redactor, text: str) -> None:
    assert redactor.text(text) == text


def test_source_and_documentation_of_this_project_stay(redactor: Redactor, repository: Path) -> None:
    for path in [*repository.glob("openclaw/**/*.py"), *repository.glob("instructions/**/*.md")]:
        text = path.read_text()
        assert redactor.text(text) == text, path


@pytest.mark.parametrize("name", ["data/GSM8K.json", "facts/openclaw_plugin/captured_requests.jsonl"])
def test_real_prompts_stay(redactor: Redactor, repository: Path, name: str) -> None:
    path = repository.parent / "shared" / name
    if not path.exists():
        pytest.skip(f"no {path}")
    text = path.read_text()
    found = [json.loads(line)["body"] for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)
    assert len(found) > 40
    for value in found:
        assert redactor.messages([{"value": value}]) == [{"value": value}]


def test_every_part_of_a_message_is_looked_at(redactor: Redactor) -> None:
    message = {
        "role": "assistant",
        "content": [{"type": "text", "text": GITHUB}, {"type": "image_url", "image_url": {"url": "data:x"}}],
        "reasoning_content": GITHUB,
        "tool_calls": [{"function": {"name": "run", "arguments": json.dumps({"token": GITHUB})}}],
        "lone": "\ud83d",
    }
    redacted = redactor.messages([message])[0]
    assert GITHUB not in json.dumps(redacted)
    assert redacted["content"][1] == message["content"][1]
    assert json.loads(redacted["tool_calls"][0]["function"]["arguments"]) == {"token": "[REDACTED:github_token]"}


def test_a_message_seen_before_is_not_scanned_again() -> None:
    found: list[str] = []
    redactor = Redactor("secrets", found.append)
    messages = [{"role": "user", "content": GITHUB}, {"role": "user", "content": "hi"}]
    first = redactor.messages(messages)
    assert redactor.messages([dict(message) for message in messages]) == first
    assert found == ["github_token"]


def test_turn_with_a_secret_keeps_no_ids_and_is_excluded(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", redaction=Redactor("secrets"))
    clean = make_turn()
    assert ledger.turns.record(clean) == clean
    words = [{"role": "user", "content": f"my key is {GITHUB}"}]
    topk = TopK([[-0.1]] * 3, [[5], [6], [7]])
    ledger.turns.record(make_turn("asked", messages=words, response_topk=topk, conversation=b"\x01" * 16))
    ledger.turns.record(make_turn("said", response_message={"role": "assistant", "content": GITHUB}))
    ledger.turns.record(make_turn("side", kind="side", messages=words))
    for name in ("asked", "said"):
        turn = ledger.turns.get(name)
        assert (turn.state, turn.reason) == ("excluded", "redacted")
    for name in ("asked", "said", "side"):
        turn = ledger.turns.get(name)
        assert (turn.prompt_ids, turn.response_ids, turn.response_logprobs, turn.weight_versions) == ([], [], [], [])
        assert turn.response_topk is None
    assert ledger.turns.get("side").reason == "side"
    assert ledger.turns.get("asked").conversation == b"\x01" * 16, "the conversation is recognised as before"
    ledger.turns.record_next_state("turn-0", words, 105.0)
    assert ledger.turns.get("turn-0").state == "pending", "a secret in the next state does not spoil the turn"
    assert ledger.turns.get("turn-0").next_state == [{"role": "user", "content": "my key is [REDACTED:github_token]"}]
    ledger.feedback.record(Feedback(turn_id="turn-0", created_at=1.0, text=f"it was {GITHUB}"), words)
    assert [item.text for item in ledger.feedback.of("turn-0")] == ["it was [REDACTED:github_token]"]
    for path in tmp_path.iterdir():
        assert GITHUB.encode() not in path.read_bytes()


def test_random_is_told_from_words() -> None:
    assert looks_random("q8Zr7Wb1Xk2Lm9Np4Tv6")
    assert not looks_random("my-long-secret-name-of-a-setting")
    assert not looks_random("a1" * 20)
    assert not looks_random("12345678901234567890")


def test_personal_data_by_option(caplog: pytest.LogCaptureFixture) -> None:
    if importlib.util.find_spec("presidio_analyzer") is None:
        with pytest.raises(ConfigError, match=r"pip install .presidio-analyzer"):
            Redactor("personal")
        return
    with caplog.at_level(logging.ERROR):
        redactor = Redactor("personal")
        text = redactor.text(f"bob@example.com, card 4111 1111 1111 1111, DE89370400440532013000, {GITHUB}")
    assert text == (
        "[REDACTED:email_address], card [REDACTED:credit_card], [REDACTED:iban_code], [REDACTED:github_token]"
    )
    assert not caplog.records, "the list of domains must not be looked for on the network"
