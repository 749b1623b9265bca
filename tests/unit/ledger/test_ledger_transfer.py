"""Turns taken over into another ledger arrive exactly, once, with what they got later."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lab.testkit.ledger_records import USER_NEXT, judged_sample, make_turn
from openclaw.ledger.copying import ChangedTurn
from openclaw.ledger.feedback import as_next_state
from openclaw.ledger.records import Feedback, TopK
from openclaw.ledger.store import Ledger


@pytest.fixture
def source(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "source.sqlite")


@pytest.fixture
def target(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "target.sqlite")


def carry(source: Ledger, target: Ledger) -> int:
    """Take everything over as a collector does, through JSON; return how many turns were news."""
    values = json.loads(json.dumps([changed.to_dict() for changed in source.transfer.changed(0.0, 0, 1000)]))
    return sum(target.transfer.merge(ChangedTurn.from_dict(item)) for item in values)


def test_turns_arrive_as_they_were_recorded(source: Ledger, target: Ledger) -> None:
    source.turns.record(make_turn("waiting", session_id="a"))
    source.turns.record(make_turn("side", session_id="a", kind="side", index=1))
    source.turns.record(make_turn("excluded", session_id="b", reason="sampling_parameters"))
    judged_sample(source, "judged", session_id="c")
    topk = TopK([[-0.1, -2.5], [-1.0 / 3.0, -1.5], [-2.5e-7, -3.4028234663852886e38]], [[5, 9], [6, 8], [0, 7]])
    source.turns.record(make_turn("likeliest", session_id="d", response_topk=topk))
    assert carry(source, target) == 5
    for name in ("waiting", "side", "excluded", "likeliest"):
        assert replace(target.turns.get(name), conversation=None) == replace(source.turns.get(name), conversation=None)
    arrived = target.turns.get("judged")
    assert (arrived.state, arrived.next_state) == ("pending", USER_NEXT)
    assert arrived.response_logprobs == source.turns.get("judged").response_logprobs
    assert target.views.counts()["samples"] == {}, "the receiver judges itself"


def test_taking_over_again_changes_nothing(source: Ledger, target: Ledger) -> None:
    source.turns.record(make_turn())
    assert carry(source, target) == 1
    assert carry(source, target) == 0
    assert target.views.counts()["turns"] == {"waiting": 1}


def test_a_later_next_state_arrives(source: Ledger, target: Ledger) -> None:
    source.turns.record(make_turn())
    carry(source, target)
    source.turns.record_next_state("turn-0", USER_NEXT, 105.0)
    assert carry(source, target) == 1
    assert (target.turns.get("turn-0").state, target.turns.get("turn-0").next_state_at) == ("pending", 105.0)


def test_feedback_arrives_as_feedback(source: Ledger, target: Ledger) -> None:
    source.turns.record(make_turn())
    for said in (
        Feedback(turn_id="turn-0", created_at=110.0, thumbs="down"),
        Feedback(turn_id="turn-0", created_at=111.0, text="No bold."),
    ):
        source.feedback.record(said, as_next_state(said))
        assert carry(source, target) == 1
    assert carry(source, target) == 0
    [pending] = target.judging.pending(5)
    assert pending.turn.signal == "feedback"
    assert [(item.thumbs, item.text, item.applied) for item in pending.feedback] == [
        ("down", None, True),
        (None, "No bold.", True),
    ]


def test_an_ended_session_ends_and_goes_on(source: Ledger, target: Ledger) -> None:
    source.turns.record(make_turn())
    source.sessions.end("session", 110.0)
    carry(source, target)
    assert target.turns.get("turn-0").state == "ended"
    source.turns.record_next_state("turn-0", USER_NEXT, 120.0)
    carry(source, target)
    assert target.turns.get("turn-0").state == "pending"


def test_what_was_forgotten_here_does_not_come_back(source: Ledger, target: Ledger) -> None:
    source.turns.record(make_turn())
    carry(source, target)
    target.sessions.forget("session")
    assert carry(source, target) == 0
    assert target.views.counts()["turns"] == {}


def test_a_session_that_is_forgotten_while_it_is_read_is_handed_out_whole(
    source: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.turns.record(make_turn("gone", session_id="gone"))
    said = Feedback(turn_id="gone", created_at=103.0, thumbs="up")
    source.feedback.record(said, as_next_state(said))
    source.turns.record(make_turn("kept", session_id="kept"))

    class Interrupted(sqlite3.Connection):
        """The session is forgotten by another connection once the list of turns was read."""

        def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
            if "WHERE number" in sql and source.views.counts()["turns"] != {"waiting": 1}:
                source.sessions.forget("gone")
            return super().execute(sql, parameters)

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Interrupted))
    found = {changed.turn.id: changed for changed in source.transfer.changed(0.0, 0, 1000)}
    assert set(found) == {"gone", "kept"}
    assert [item.thumbs for item in found["gone"].feedback] == ["up"]
    assert [changed.turn.id for changed in source.transfer.changed(0.0, 0, 1000)] == ["kept"]


def test_pages_leave_nothing_out(source: Ledger) -> None:
    for number in range(7):
        source.turns.record(make_turn(f"turn-{number}", finished_at=101.0 + number // 3))
    seen: list[str] = []
    since, after = 0.0, 0
    while page := source.transfer.changed(since, after, 2):
        seen += [changed.turn.id for changed in page]
        since, after = page[-1].changed_at, page[-1].number
    assert seen == [f"turn-{number}" for number in range(7)]
