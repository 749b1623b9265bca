"""What the sessions read back: turns by session and by conversation, marks, and who is idle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.ledger.store import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    yield ledger
    ledger.close()


def record(ledger: Ledger, turn_id: str, conversation: bytes, **changes: Any) -> None:
    ledger.turns.record(make_turn(turn_id, conversation=conversation, **changes))


def test_a_session_is_read_back_by_its_last_and_its_waiting_turns(ledger: Ledger) -> None:
    record(ledger, "old", b"old")
    record(ledger, "followed", b"followed")
    ledger.turns.record_next_state("followed", USER_NEXT, 1.0)
    for n in range(20):
        record(ledger, f"side-{n}", b"side", kind="side")
    record(ledger, "other", b"other", session_id="other")
    count, nodes = ledger.sessions.nodes("session", 3)
    assert count == 22
    assert [node.id for node in nodes] == ["old", "side-17", "side-18", "side-19"]
    assert (nodes[0].state, nodes[0].conversation, nodes[0].next_state) == ("waiting", b"old", None)
    assert nodes[0].first_message == {"role": "user", "content": "What is 2 + 3?"}
    assert ledger.sessions.nodes("nobody", 3) == (0, [])


def test_conversations_are_found_in_order_up_to_a_main_turn(ledger: Ledger) -> None:
    record(ledger, "deep-side", b"deep", kind="side")
    record(ledger, "followed", b"middle", session_id="plain-1")
    ledger.turns.record_next_state("followed", USER_NEXT, 1.0)
    record(ledger, "waiting", b"middle", session_id="plain-2")
    record(ledger, "newest", b"middle", session_id="plain-3")
    ledger.turns.record_next_state("newest", USER_NEXT, 1.0)
    record(ledger, "shallow", b"shallow")
    found = ledger.sessions.nodes_of_conversations([b"unknown", b"deep", b"middle", b"shallow"], 2)
    assert [node.id for node in found] == ["deep-side", "waiting", "newest"]
    assert found[2].next_state == USER_NEXT
    digests = [b"deep", b"middle", b"shallow"]
    assert [node.id for node in ledger.sessions.nodes_of_conversations(digests, 9, session_id="session")] == [
        "deep-side",
        "shallow",
    ]
    plain = ledger.sessions.nodes_of_conversations(digests, 9, session_prefix="plain-")
    assert [node.id for node in plain] == ["waiting", "newest", "followed"]


def test_a_regenerated_turn_is_marked_until_it_is_continued(ledger: Ledger) -> None:
    for turn_id in ("first", "second", "third"):
        record(ledger, turn_id, b"x")
    ledger.turns.record_next_state("third", USER_NEXT, 1.0)
    for turn_id in ("first", "second", "third"):
        ledger.turns.mark_regenerated(turn_id)
    assert ledger.turns.regenerated("session") == ["first", "second"]
    ledger.turns.record_next_state("first", USER_NEXT, 2.0)
    assert (ledger.turns.get("first").signal, ledger.turns.get("first").reason) == ("next_state", None)
    ledger.sessions.end("session", 3.0)
    assert (ledger.turns.get("second").state, ledger.turns.get("second").reason) == ("ended", "regenerated")
    assert ledger.turns.get("third").signal == "next_state"
    assert ledger.turns.regenerated("session") == ["second"]


def test_idle_sessions_come_in_pages(ledger: Ledger) -> None:
    for n in range(5):
        record(ledger, f"turn-{n}", b"x", session_id=f"s{n}", finished_at=float(n))
    record(ledger, "again", b"x", session_id="s0", finished_at=9.0)
    ledger.sessions.end("s1", 5.0)
    assert ledger.sessions.idle(3.0, "", 2) == (["s2"], "s2")
    assert ledger.sessions.idle(3.0, "s2", 2) == (["s3"], "s4")
    assert ledger.sessions.idle(3.0, "s4", 2) == ([], "")
