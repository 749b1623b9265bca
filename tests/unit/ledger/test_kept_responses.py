"""Responses that clients may ask for again: kept with their turns, one conversation once, gone with the session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.testkit.ledger_records import make_turn
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.records import KeptResponse
from openclaw.ledger.responses import Responses
from openclaw.ledger.store import Ledger
from openclaw.owners import owner_of
from openclaw.privacy.redactor import Redactor

SECRET = "AKIAQ3EGRIXNB2LMBHVC"  # nosec: shaped like a key, opens nothing


def anybody(session: str) -> bool:
    return True


def kept(words: str, previous: str | None = None) -> KeptResponse:
    return KeptResponse([{"role": "user", "content": words}], {"output": [], "metadata": {"said": words}}, previous)


def record(ledger: Ledger, turn_id: str, response: KeptResponse, session: str = "s", **fields: Any) -> None:
    ledger.turns.record(make_turn(turn_id, session_id=session, kept=response, **fields))


@pytest.fixture
def responses(tmp_path: Path) -> Responses:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    record(ledger, "t1", kept("one"))
    record(ledger, "t2", kept("two", "t1"))
    record(ledger, "t3", kept("three", "t2"), "@ann:s")
    record(ledger, "t4", kept("four", "t1"))
    return ledger.responses


def words(responses: Responses, turn_id: str) -> list[str]:
    return [item["content"] for part in responses.chain(turn_id, anybody) for item in part.items]


def test_a_chain_has_every_part_once(responses: Responses) -> None:
    assert words(responses, "t3") == ["one", "two", "three"]
    assert words(responses, "t4") == ["one", "four"]
    assert responses.get("t4", anybody) == {"output": [], "metadata": {"said": "four"}}


def test_a_chain_needs_every_part(responses: Responses) -> None:
    responses.delete("t2", anybody)
    for gone in ("t2", "t3", "unknown"):
        with pytest.raises(UnknownRecordError):
            responses.chain(gone, anybody)
    assert words(responses, "t1") == ["one"]
    with pytest.raises(UnknownRecordError):
        responses.delete("t2", anybody)


def test_another_owner_has_none_of_it(responses: Responses) -> None:
    def local(session: str) -> bool:
        return owner_of(session) == ""

    def ann(session: str) -> bool:
        return owner_of(session) == "ann"

    with pytest.raises(UnknownRecordError):
        responses.chain("t3", ann)  # its beginning is not hers
    assert responses.get("t3", ann)["metadata"] == {"said": "three"}
    for ask in (responses.get, responses.delete, responses.chain):
        with pytest.raises(UnknownRecordError):
            ask("t3", local)


def test_a_forgotten_session_takes_its_responses(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    record(ledger, "t1", kept("qx7marker"))
    record(ledger, "t2", kept("stays"), "other")
    ledger.sessions.forget("s")
    ledger.sessions.erase()
    assert ledger.database.rows("SELECT turn_id FROM responses")[0]["turn_id"] == "t2"
    assert not [path for path in tmp_path.iterdir() if b"qx7marker" in path.read_bytes()]
    with pytest.raises(UnknownRecordError):
        ledger.responses.get("t1", anybody)


def test_what_redaction_would_change_is_not_kept(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", redaction=Redactor("secrets"))
    record(ledger, "t1", kept(f"my key is {SECRET}"))
    record(ledger, "t2", kept("nothing secret"))
    assert ledger.responses.get("t2", anybody)
    with pytest.raises(UnknownRecordError):
        ledger.responses.get("t1", anybody)
    assert SECRET.encode() not in (tmp_path / "ledger.sqlite").read_bytes()
