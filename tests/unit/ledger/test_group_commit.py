"""Ledger calls that wait together share a transaction; each keeps its own outcome."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.testkit.ledger_records import USER_NEXT, make_turn
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.group_commit import GroupCommit
from openclaw.ledger.store import Ledger


class CountingLedger(Ledger):
    """Counts the transactions that reached the disk; can be held up, and can fail at the end of one of several calls."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.commits, begin = 0, self.database.transaction

        @contextmanager
        def transaction() -> Iterator[sqlite3.Connection]:
            outer = not self.database.in_transaction()
            with begin() as connection:
                yield connection
                if outer and self.fail_next_group:
                    self.fail_next_group = False
                    raise sqlite3.OperationalError("database or disk is full")
            self.commits += outer

        self.database.transaction = transaction
        self.gate = threading.Event()
        self.gate.set()
        self.fail_next_group = False

    def wait_at_gate(self) -> None:
        assert self.gate.wait(10)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[CountingLedger]:
    ledger = CountingLedger(tmp_path / "ledger.sqlite")
    yield ledger
    ledger.close()


async def together(ledger: CountingLedger, *calls: tuple) -> list[object]:
    """Make ``calls`` so that they wait for the same commit; return their results or errors."""
    commits = GroupCommit(ledger)
    ledger.gate.clear()
    first = asyncio.ensure_future(commits.call(ledger.wait_at_gate))
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(commits.call(*call)) for call in calls]
    await asyncio.sleep(0)
    ledger.gate.set()
    await first
    results = await asyncio.gather(*others, return_exceptions=True)
    await commits.close()
    return results


async def test_calls_that_wait_together_are_one_commit(ledger: CountingLedger) -> None:
    turns = [make_turn(f"turn-{number}", index=number) for number in range(20)]
    results = await together(
        ledger, *[(ledger.turns.record, turn) for turn in turns], (ledger.sessions.nodes, "session", 1)
    )
    assert results == [*turns, (20, [])]
    assert ledger.commits == 1
    assert [record.turn.id for record in ledger.views.turn_records()] == [turn.id for turn in turns]


async def test_one_that_fails_leaves_no_trace_and_the_others_count(ledger: CountingLedger) -> None:
    results = await together(
        ledger,
        (ledger.turns.record, make_turn("a")),
        (ledger.turns.record_next_state, "unknown", USER_NEXT, 5.0),
        (ledger.turns.record, make_turn("a")),
        (ledger.turns.record_next_state, "a", USER_NEXT, 5.0),
    )
    assert results[0] == make_turn("a")
    assert isinstance(results[1], UnknownRecordError)
    assert isinstance(results[2], sqlite3.IntegrityError)
    assert results[3] is None
    assert ledger.commits == 1
    assert [(record.turn.id, record.turn.state) for record in ledger.views.turn_records()] == [("a", "pending")]


async def test_calls_whose_transaction_fails_are_made_alone(ledger: CountingLedger) -> None:
    ledger.fail_next_group = True
    results = await together(ledger, *[(ledger.turns.record, make_turn(f"turn-{n}", index=n)) for n in range(3)])
    assert results == [make_turn(f"turn-{n}", index=n) for n in range(3)]
    assert ledger.commits == 3
    assert ledger.sessions.nodes("session", 1)[0] == 3


async def test_a_transaction_that_sqlite_gave_up_is_not_half_counted(ledger: CountingLedger) -> None:
    gave_up = []

    def give_up_once() -> None:
        with ledger.transaction() as connection:
            if not gave_up:
                gave_up.append(True)
                connection.execute("ROLLBACK")
                raise sqlite3.OperationalError("disk I/O error")

    results = await together(
        ledger, (ledger.turns.record, make_turn("a")), (give_up_once,), (ledger.turns.record, make_turn("b", index=1))
    )
    assert results == [make_turn("a"), None, make_turn("b", index=1)]
    assert ledger.sessions.nodes("session", 1)[0] == 2


async def test_a_caller_that_leaves_does_not_take_its_call_back(ledger: CountingLedger) -> None:
    commits = GroupCommit(ledger)
    ledger.gate.clear()
    held = asyncio.ensure_future(commits.call(ledger.wait_at_gate))
    await asyncio.sleep(0)
    leaving = asyncio.ensure_future(commits.call(ledger.turns.record, make_turn("a")))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    ledger.gate.set()
    await held
    await commits.close()
    assert ledger.sessions.nodes("session", 1)[0] == 1
