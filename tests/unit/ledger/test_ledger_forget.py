"""A forgotten session leaves no byte of its words, and the count of what was trained stays exact."""

from __future__ import annotations

import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from lab.testkit.ledger_records import USER_NEXT, judged_sample, make_turn
from openclaw.credit.baseline import record_judged
from openclaw.inspect import main
from openclaw.ledger import sessions
from openclaw.ledger.exceptions import LedgerUnavailableError, TransitionError, UnknownRecordError
from openclaw.ledger.records import Feedback, Turn, Verdict, Vote
from openclaw.ledger.sessions import Forgotten
from openclaw.ledger.store import Ledger
from openclaw.training.samples import make_sample

MARKER = "qx7marker"
NOW = 500.0


def talk(ledger: Ledger, turn_id: str, session_id: str = f"session-{MARKER}", padding: int = 0) -> Turn:
    """Record a judged turn with a sample in which every text holds the marker."""
    words = f"{MARKER} " + "pad " * padding
    turn = make_turn(
        turn_id,
        session_id=session_id,
        messages=[{"role": "user", "content": words}],
        response_message={"role": "assistant", "content": words},
    )
    ledger.turns.record(turn)
    ledger.turns.record_next_state(turn_id, [{"role": "user", "content": words}], 102.0)
    verdict = Verdict(score=1, hint=words, votes=(Vote("prm", words, 1),))
    record_judged(ledger, turn_id, verdict, [make_sample(turn, 1.0, score=1, metadata={"hint": words})], None)
    return turn


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite", clock=lambda: NOW)


def files_with_marker(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and MARKER.encode() in path.read_bytes()]


def test_no_byte_of_a_session_is_left(ledger: Ledger, tmp_path: Path) -> None:
    for number in range(30):
        judged_sample(ledger, f"keep-{number}", session_id=f"other-{number}")
        talk(ledger, f"gone-{number}", padding=number * 100)
        ledger.feedback.record(Feedback(turn_id=f"gone-{number}", created_at=1.0, text=MARKER, source=MARKER), [])
    assert "ledger.sqlite-wal" in files_with_marker(tmp_path)
    assert ledger.sessions.forget(f"session-{MARKER}") == Forgotten(turns=30, samples=30, trained=0)
    ledger.sessions.erase()
    assert files_with_marker(tmp_path) == []
    assert ledger.views.counts()["turns"] == {"judged": 30}
    assert ledger.samples.ready_count() == 30
    assert ledger.database.rows("PRAGMA foreign_key_check") == []
    assert ledger.database.rows("PRAGMA integrity_check")[0][0] == "ok"


def test_a_file_of_an_older_program_is_forgotten_with_its_copy(repository: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    shutil.copy(repository / "tests/data/ledger_v1.sqlite", path)
    ledger = Ledger(path)
    ledger.sessions.forget("alice")
    assert [backup.name for backup in ledger.sessions.erase()] == ["ledger.sqlite.v1.backup"]
    assert not [name for name in tmp_path.iterdir() if b"alice" in name.read_bytes()]


def test_steps_keep_their_count(ledger: Ledger) -> None:
    for number in range(4):
        talk(ledger, f"gone-{number}")
    judged_sample(ledger, "kept")
    ledger.samples.claim(0, 2)
    ledger.samples.record_step(0, "1", 1.0, 2.0)
    ledger.samples.mark_trained(0)
    held = ledger.samples.claim(1, 2)
    assert ledger.sessions.forget(f"session-{MARKER}") == Forgotten(turns=4, samples=4, trained=4)
    ledger.samples.record_step(1, "2", 3.0, 4.0)
    assert ledger.samples.mark_trained(1) == 0
    assert [step["samples"] for step in ledger.views.step_records()] == [2, 2]
    ledger.samples.drop(held[0].metadata["ledger_id"], "stale", 1)
    assert [step["samples"] for step in ledger.views.step_records()] == [2, 1]
    assert ledger.samples.reconcile(-1) == {"trained": 0, "ready": 0}
    assert [sample.metadata["turn_id"] for sample in ledger.samples.claim(0, 9)] == ["kept"]
    ledger.samples.record_step(0, "1", 5.0, 6.0)
    assert [step["samples"] for step in ledger.views.step_records()] == [1], "a restored checkpoint did not see them"
    assert ledger.samples.forgotten_count() == 4


def test_a_reply_under_way_does_not_bring_the_session_back(ledger: Ledger) -> None:
    talk(ledger, "gone")
    ledger.sessions.forget(f"session-{MARKER}")
    late = make_turn("late", session_id=f"session-{MARKER}", created_at=NOW - 1, finished_at=NOW + 1)
    assert ledger.turns.record(late) is None
    assert ledger.views.counts()["sessions"] == 0
    with pytest.raises(UnknownRecordError):
        ledger.turns.record_next_state("gone", USER_NEXT, NOW)
    with pytest.raises(UnknownRecordError):
        record_judged(ledger, "gone", Verdict(score=1), [make_sample(late, 1.0, score=1)], None)
    new = make_turn("new", session_id=f"session-{MARKER}", created_at=NOW + 1)
    assert ledger.turns.record(new) == new, "a later request begins anew"


def test_a_sample_cannot_leave_without_a_tombstone(ledger: Ledger) -> None:
    judged_sample(ledger, "turn-0")
    with pytest.raises(TransitionError, match="illegal deletion"), ledger.transaction() as connection:
        connection.execute("DELETE FROM samples")


def test_only_old_finished_sessions_are_due(ledger: Ledger) -> None:
    for number, at in enumerate((200.0, 100.0, 300.0)):
        ledger.turns.record(
            make_turn(f"turn-{number}", session_id=f"session-{number}", created_at=at, finished_at=at + 1)
        )
    ledger.turns.record(make_turn("again", session_id="session-1", created_at=400.0, finished_at=401.0))
    ledger.turns.record(make_turn("pending", session_id="pending"))
    ledger.turns.record_next_state("pending", USER_NEXT, 102.0)
    ledger.turns.record(make_turn("old", session_id="old"))
    assert ledger.sessions.quiet_since(302.0, 10) == ["old", "session-0", "session-2"]
    assert ledger.sessions.quiet_since(302.0, 1) == ["old"]


def test_a_reader_delays_the_erasing_and_is_named(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "ERASE_SECONDS", 0.05)
    talk(ledger, "gone")
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM turns").fetchone()
        ledger.sessions.forget(f"session-{MARKER}")
        with pytest.raises(LedgerUnavailableError, match="because another process reads"):
            ledger.sessions.erase()
        monkeypatch.setattr(sessions, "ERASE_SECONDS", 30.0)
        with ThreadPoolExecutor(1) as thread:
            erasing = thread.submit(ledger.sessions.erase)
            ledger.turns.record(make_turn("other", session_id="other"))
            assert not erasing.done(), "a turn waited for the erasing, which waits for the reader"
            reader.execute("ROLLBACK")
            erasing.result()
        reader.execute("BEGIN")
        reader.execute("ROLLBACK")
    ledger.sessions.erase()
    assert files_with_marker(tmp_path) == []


def test_a_session_under_its_first_reply_is_not_stored(ledger: Ledger) -> None:
    with pytest.raises(UnknownRecordError):
        ledger.sessions.forget("new")
    assert ledger.sessions.forget("new", under_way=True).turns == 0
    assert ledger.turns.record(make_turn("late", session_id="new")) is None


def test_a_session_that_is_only_named_like_a_pass_stays(ledger: Ledger) -> None:
    for name in ("a", "a~2"):
        ledger.turns.record(make_turn(f"turn-{name[:1]}{len(name)}", session_id=name))
    ledger.sessions.forget("a")
    assert ledger.views.session_ids() == ["a~2"]


def test_command_forgets(ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talk(ledger, "gone")
    assert main([str(ledger.path), "forget", f"session-{MARKER}"]) == 0
    assert "1 turn and 1 sample of" in capsys.readouterr().out
    assert files_with_marker(tmp_path) == []
    assert main([str(ledger.path), "forget", f"session-{MARKER}"]) == 2
    assert "--turns" in capsys.readouterr().err
