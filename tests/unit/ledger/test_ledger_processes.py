"""The ledger under several processes and under `kill -9` in the middle of a transaction."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from lab.testkit.ledger_records import judged_sample, make_turn
from openclaw.ledger.store import Ledger

SPAWN = multiprocessing.get_context("spawn")
DEADLINE = 60.0


def write_and_die_mid_transaction(path: Path, reports: Connection) -> None:
    """Commit turns, report each, then stop inside an open transaction and wait to be killed."""
    ledger = Ledger(path)
    for number in range(3):
        judged_sample(ledger, f"turn-{number}")
        reports.send(f"turn-{number}")
    with ledger.transaction() as connection:
        connection.execute("UPDATE samples SET state = 'leased', rollout_id = 7")
        connection.execute("DELETE FROM verdicts")
        reports.send("inside")
        signal.pause()


def write_until_killed(path: Path, reports: Connection) -> None:
    """Commit turns without end and report each after its commit."""
    ledger = Ledger(path)
    number = 0
    while True:
        judged_sample(ledger, f"turn-{number}")
        reports.send(number)
        number += 1


def write_many(path: Path, name: str, count: int, reports: Connection) -> None:
    """Wait for the start signal, then commit ``count`` judged turns."""
    ledger = Ledger(path)
    reports.send("ready")
    reports.recv()
    for number in range(count):
        judged_sample(ledger, f"{name}-{number}", session_id=name)
    reports.send("done")


def receive(pipe: Connection) -> object:
    assert pipe.poll(DEADLINE), "the child process said nothing"
    return pipe.recv()


def integrity(path: Path) -> str:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("PRAGMA integrity_check").fetchone()[0]
    finally:
        connection.close()


def test_kill_in_a_transaction_keeps_what_was_committed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ours, theirs = SPAWN.Pipe()
    child = SPAWN.Process(target=write_and_die_mid_transaction, args=(path, theirs), daemon=True)
    child.start()
    assert [receive(ours) for _ in range(4)] == ["turn-0", "turn-1", "turn-2", "inside"]
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join(DEADLINE)
    ledger = Ledger(path)
    assert integrity(path) == "ok"
    assert ledger.views.counts()["samples"] == {"ready": 3}
    assert len(ledger.judging.judged("session")) == 3
    judged_sample(ledger, "after")
    assert ledger.samples.ready_count() == 4


@pytest.mark.parametrize("commits", [1, 20])
def test_kill_at_any_moment_loses_no_commit(tmp_path: Path, commits: int) -> None:
    path = tmp_path / "ledger.sqlite"
    ours, theirs = SPAWN.Pipe()
    child = SPAWN.Process(target=write_until_killed, args=(path, theirs), daemon=True)
    child.start()
    for _ in range(commits):
        last = receive(ours)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join(DEADLINE)
    while ours.poll():
        last = ours.recv()
    ledger = Ledger(path)
    assert integrity(path) == "ok"
    assert isinstance(last, int)
    assert [sample.metadata["turn_id"] for sample in ledger.samples.claim(0, last + 1)] == [
        f"turn-{number}" for number in range(last + 1)
    ]


def test_processes_write_at_once_while_another_claims(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    pipes, children = [], []
    for name in ("left", "right"):
        ours, theirs = SPAWN.Pipe()
        children.append(SPAWN.Process(target=write_many, args=(path, name, 30, theirs), daemon=True))
        children[-1].start()
        pipes.append(ours)
    assert [receive(pipe) for pipe in pipes] == ["ready", "ready"]
    ledger = Ledger(path)
    for pipe in pipes:
        pipe.send("go")
    claimed: list[int] = []
    rollout_id = 0
    while len(claimed) < 60:
        claimed += [sample.metadata["ledger_id"] for sample in ledger.samples.claim(rollout_id, 8)]
        rollout_id += 1
    assert [receive(pipe) for pipe in pipes] == ["done", "done"]
    for child in children:
        child.join(DEADLINE)
        assert child.exitcode == 0
    assert sorted(claimed) == list(range(1, 61))
    assert ledger.views.counts()["turns"] == {"judged": 60}


def test_two_processes_create_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    pipes = []
    for name in ("left", "right"):
        ours, theirs = SPAWN.Pipe()
        SPAWN.Process(target=write_many, args=(path, name, 1, theirs), daemon=True).start()
        pipes.append(ours)
    assert [receive(pipe) for pipe in pipes] == ["ready", "ready"]
    for pipe in pipes:
        pipe.send("go")
    assert [receive(pipe) for pipe in pipes] == ["done", "done"]
    ledger = Ledger(path)
    assert ledger.samples.ready_count() == 2
    ledger.turns.record(make_turn("third"))
