"""The fault benchmark finds what it looks for: each kind of loss, made on purpose."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from benchmarks.fault_parts.checks import Checker, journal_lines
from benchmarks.fault_parts.clients import Clients
from benchmarks.fault_parts.fast import VICTIMS, plan
from benchmarks.fault_parts.trainer import Weights
from benchmarks.updates import Observed
from lab.testkit.ledger_records import USER_NEXT, judged_sample, make_turn
from openclaw.ledger.store import Ledger


class Scene:
    """A ledger of three judged turns, two of them in a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.sqlite"
        self.ledger = Ledger(self.path)
        self.weights = Weights()
        for number in range(3):
            judged_sample(self.ledger, f"turn-{number}")
        self.weights = Weights(0, [sample.metadata["ledger_id"] for sample in self.ledger.samples.claim(0, 2)])
        self.ledger.samples.mark_trained(0)
        self.checker = Checker(self.path, lambda: self.weights)

    def damage(self, sql: str) -> None:
        with sqlite3.connect(self.path) as connection:
            for trigger in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                connection.execute(f"DROP TRIGGER {trigger[0]}")
            connection.execute(sql)

    def found(self, replies: set[str] | None = None, answered: set[str] | None = None) -> dict[str, int]:
        """Kinds of findings that are not empty."""
        self.checker.after_kill(replies or set(), answered or set())
        return {name: count for name, count in self.checker.findings.counts().items() if count}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path)
    assert scene.found({"turn-0"}, {"turn-0"}) == {}
    return scene


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("DELETE FROM verdicts WHERE turn_id = 'turn-0'", "judged_lost"),
        ("DELETE FROM samples WHERE turn_id = 'turn-2'", "judged_lost"),
        ("UPDATE turns SET state = 'pending' WHERE id = 'turn-1'", "judged_lost"),
        ("UPDATE samples SET state = 'ready', rollout_id = NULL WHERE id = 1", "trained_twice"),
        ("UPDATE samples SET state = 'trained', rollout_id = 1 WHERE id = 3", "trained_unlike_checkpoint"),
    ],
)
def test_damage_is_found(scene: Scene, sql: str, kind: str) -> None:
    scene.damage(sql)
    assert scene.found() == {kind: 1}


def test_a_sample_twice_in_a_checkpoint_is_found(scene: Scene) -> None:
    scene.weights = Weights(1, [1, 2, 2])
    assert scene.found() == {"trained_twice": 1}


def test_what_clients_were_told_must_be_there(scene: Scene) -> None:
    scene.ledger.turns.record(make_turn("waits"))
    assert scene.found({"waits", "turn-1"}, {"turn-1"}) == {}
    assert scene.found({"gone"}, {"waits"}) == {"acknowledged_lost": 1, "feedback_lost": 1}


def test_the_end_asks_for_more(scene: Scene) -> None:
    scene.ledger.turns.record(make_turn("late", session_id="other"))
    scene.ledger.turns.record_next_state("late", USER_NEXT, 1.0)
    scene.ledger.samples.claim(1, 1)
    scene.checker.at_the_end({"late"})
    assert scene.checker.findings.counts() | {"feedback_lost": 1, "damaged": 1} == scene.checker.findings.counts()


def test_everyone_is_killed_before_anyone_twice() -> None:
    import random

    assert set(plan(len(VICTIMS), random.Random(0))) == set(VICTIMS)
    assert len(plan(100, random.Random(0))) == 100


def test_a_failure_is_excused_only_by_the_gateways_death() -> None:
    clients = Clients("http://127.0.0.1:1", 1, 0)
    clients.journal.failures += [(1.0, 2.0, "before"), (4.0, 6.0, "during")]
    assert clients.refused(lambda start, end: start <= 5.0 <= end) == ["before"]


def test_the_last_line_of_a_journal_may_be_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert journal_lines(path) == set()
    path.write_text("turn-1\nturn-2\nturn-")
    assert journal_lines(path) == {"turn-1", "turn-2"}


def test_waits_that_overlap_a_swap_are_held() -> None:
    observed = Observed(replies=[[0.0, 0.01, 0.02, 0.32, 0.33], [0.05, 0.27, 0.28]], swaps=[(0.1, 0.25)])
    summary = observed.summary()
    assert summary["held_waits"] == 2
    assert summary["ordinary_wait_ms"]["p50"] == 10.0
    assert summary["swap_ms"]["max"] == 150.0
    assert summary["beyond_swap_ms"]["max"] == pytest.approx(140.0)
    assert summary["held_share_within_100_ms"] == 0.5
