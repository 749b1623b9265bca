"""A full disk, a lock and a damaged file have a clear error, leave no gap, and end when their cause does."""

from __future__ import annotations

import logging
import random
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lab.testkit.ledger_records import judged_sample, make_turn
from openclaw.inspect import main
from openclaw.ledger import database, sessions
from openclaw.ledger.exceptions import LedgerDamagedError, LedgerFullError, LedgerUnavailableError
from openclaw.ledger.sessions import RESERVE_BYTES, Forgotten, keep_reserve, reserve_path
from openclaw.ledger.store import Ledger

PAGE = 4096
LONG = [{"role": "user", "content": "long " * 4000}]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no small file system: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(ledger: Ledger, prefix: str) -> int:
    """Record turns until the ledger refuses one; return how many it took."""
    taken = 0
    with pytest.raises(LedgerUnavailableError, match=f"{ledger.path}: the disk is full; free some space"):  # noqa: PT012
        while taken < 1000:
            ledger.turns.record(make_turn(f"{prefix}-{taken}", messages=LONG))
            taken += 1
    return taken


def turn_ids(ledger: Ledger) -> list[str]:
    return [record.turn.id for record in ledger.views.turn_records()]


def test_full_disk_is_named_and_writing_goes_on_when_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 1_400_000)
    ledger = Ledger(small_disk / "ledger.sqlite")
    taken = fill(ledger, "before")
    assert taken > 3
    assert turn_ids(ledger) == [f"before-{number}" for number in range(taken)]
    ballast.unlink()
    ledger.turns.record(make_turn("after", messages=LONG))
    assert turn_ids(ledger)[-1] == "after"
    ledger.close()
    assert Ledger(small_disk / "ledger.sqlite").database.rows("PRAGMA integrity_check")[0][0] == "ok"


def fill_to_the_last_page(ledger: Ledger, folder: Path) -> None:
    """Record a session of five turns, then fill the disk until not even a page is left."""
    for number in range(5):
        ledger.turns.record(make_turn(f"mine-{number}", session_id="mine", messages=LONG))
    fill(ledger, "other")
    with pytest.raises(OSError, match="No space left"), (folder / "rest").open("wb", buffering=0) as file:  # noqa: PT012
        while True:
            file.write(b"x" * 512)


def test_a_session_is_deleted_on_a_full_disk(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MIN_FREE", 1)
    path = small_disk / "ledger.sqlite"
    ledger = Ledger(path)
    ledger.database.rows("PRAGMA wal_autocheckpoint = 20")  # as small as this disk, compared with the reserve
    assert keep_reserve(path, 400_000)
    fill_to_the_last_page(ledger, small_disk)
    assert ledger.sessions.forget("mine").turns == 5
    ledger.sessions.erase()
    assert {record.turn.session_id for record in ledger.views.turn_records()} == {"session"}


def test_without_a_reserve_a_full_disk_is_named(small_disk: Path) -> None:
    ledger = Ledger(small_disk / "ledger.sqlite")
    fill_to_the_last_page(ledger, small_disk)
    turns = turn_ids(ledger)
    with pytest.raises(LedgerFullError):
        ledger.sessions.forget("mine")
    assert turn_ids(ledger) == turns


@pytest.mark.parametrize("together", [False, True])
def test_a_reserve_is_used_by_a_deletion_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.turns.record(make_turn(session_id="mine"))
    assert ledger.sessions.reserve()
    held = reserve_path(ledger.path)
    assert held.stat().st_size == RESERVE_BYTES
    assert held.stat().st_mode & 0o777 == 0o600
    forget = ledger.sessions._forget

    def full_disk(session_id: str, episode: str | None, *, under_way: bool) -> Forgotten:
        if held.stat().st_size:
            raise LedgerFullError("full")
        return forget(session_id, episode, under_way=under_way)

    monkeypatch.setattr(ledger.sessions, "_forget", full_disk)
    if together:
        with pytest.raises(LedgerFullError), ledger.transaction():
            ledger.sessions.forget("mine")
        assert held.stat().st_size == RESERVE_BYTES, "the group runs the deletion again, alone"
        return
    assert ledger.sessions.forget("mine").turns == 1
    assert held.stat().st_size == 0
    ledger.sessions.erase()
    assert held.stat().st_size == RESERVE_BYTES, "taken again"


def test_a_reserve_leaves_room_on_a_small_disk(small_disk: Path) -> None:
    ledger = Ledger(small_disk / "ledger.sqlite")
    assert not ledger.sessions.reserve()
    ledger.turns.record(make_turn(session_id="mine"))
    assert ledger.sessions.forget("mine").turns == 1
    ledger.sessions.erase()
    assert reserve_path(ledger.path).stat().st_size == 0


def test_full_database_keeps_every_commit(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    judged_sample(ledger, "first")
    ledger.database.rows("PRAGMA max_page_count = 60")
    taken = fill(ledger, "turn")
    with pytest.raises(LedgerUnavailableError), ledger.transaction() as connection:  # noqa: PT012
        connection.execute("UPDATE samples SET state = 'leased', rollout_id = 0")
        connection.execute("UPDATE turns SET judge_error = ?", ("x" * 400_000,))
    assert ledger.views.counts()["samples"] == {"ready": 1}, "half a transaction must not stay"
    ledger.database.rows("PRAGMA max_page_count = 100000")
    assert fill_one_more(ledger) == ["first", *(f"turn-{number}" for number in range(taken)), "after"]


def fill_one_more(ledger: Ledger) -> list[str]:
    ledger.turns.record(make_turn("after", messages=LONG))
    return turn_ids(ledger)


def test_lock_beyond_the_time_out_is_named_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_SECONDS", 0.05)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    with closing(sqlite3.connect(ledger.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailableError, match="another process locks the file"):
            ledger.turns.record(make_turn())
        assert turn_ids(ledger) == [], "reading goes on"
        other.execute("ROLLBACK")
    ledger.turns.record(make_turn())
    assert turn_ids(ledger) == ["turn-0"]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A closed ledger of 100 judged turns."""
    path = tmp_path / "ledger.sqlite"
    ledger = Ledger(path)
    for number in range(100):
        judged_sample(ledger, f"turn-{number}", session_id=f"session-{number % 10}")
    ledger.close()
    return path


def cut_tail(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 3 // 4 // PAGE * PAGE)


def overwrite_middle(path: Path) -> None:
    """Overwrite three pages from the middle on that do not hold the list of tables, without which nothing can be read."""
    content = path.read_bytes()
    places = range(len(content) // 2 // PAGE * PAGE, len(content) - 3 * PAGE, PAGE)
    middle = next(place for place in places if b"CREATE " not in content[place : place + 3 * PAGE])
    with path.open("r+b") as file:
        file.seek(middle)
        file.write(random.Random(7).randbytes(3 * PAGE))


@pytest.mark.parametrize("damage", [cut_tail, overwrite_middle])
def test_damaged_file_is_refused_and_salvaged(written: Path, damage, capsys: pytest.CaptureFixture[str]) -> None:
    damage(written)
    bytes_before = written.read_bytes()
    with pytest.raises(LedgerDamagedError, match=r"openclaw-rl inspect .* salvage "):
        Ledger(written)
    assert main([str(written)]) == 2
    assert "salvage" in capsys.readouterr().err
    target = written.with_name("salvaged.sqlite")
    assert main([str(written), "salvage", str(target)]) == 0
    report = capsys.readouterr().out
    assert "OPENCLAW_LEDGER" in report
    assert written.read_bytes() == bytes_before
    ledger = Ledger(target)
    kept = turn_ids(ledger)
    # The pages in the middle may be of an index, which holds nothing that is not elsewhere.
    assert 20 < len(kept) <= (99 if damage is cut_tail else 100)
    assert f"turns {len(kept)} kept" in " ".join(report.split())
    assert len(ledger.views.first_scores()) == len(ledger.database.rows("SELECT 1 FROM verdicts"))
    assert all(ledger.turns.get(turn_id).prompt_ids == [1, 2, 3, 4] for turn_id in kept)
    assert ledger.database.rows("PRAGMA foreign_key_check") == []
    samples = ledger.samples.claim(0, 1000)
    assert {sample.metadata["turn_id"] for sample in samples} <= set(kept)
    judged_sample(ledger, "new")
    assert main([str(written), "salvage", str(target)]) == 2
    assert "exists" in capsys.readouterr().err


def test_salvage_of_a_whole_file_loses_nothing(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = Ledger(written)
    before.samples.claim(0, 5)
    before.samples.record_step(0, "1", 1.0, 2.0)
    target = written.with_name("salvaged.sqlite")
    assert main([str(written), "salvage", str(target)]) == 0
    assert list(Ledger(target).views.turn_records()) == list(before.views.turn_records())
    assert Ledger(target).views.step_records() == before.views.step_records()
    assert Ledger(target).views.counts() == before.views.counts()


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"this is a text and no database\n" * 1000)
    with pytest.raises(LedgerDamagedError, match="not a database"):
        Ledger(path)


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    """What a killed process leaves: twenty turns in the write-ahead log."""
    ledger = Ledger(tmp_path / "live.sqlite")
    for number in range(20):
        ledger.turns.record(make_turn(f"turn-{number}"))
    path = tmp_path / "killed.sqlite"
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{ledger.path}{suffix}", f"{path}{suffix}")
    ledger.close()
    return path


def test_whole_log_gives_everything(unfinished: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert len(turn_ids(Ledger(unfinished))) == 20
    assert not caplog.records


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_cut_log_loses_only_the_last_transactions(unfinished: Path, share: float) -> None:
    log = unfinished.with_name("killed.sqlite-wal")
    with log.open("r+b") as file:
        file.truncate(int(log.stat().st_size * share))
    kept = turn_ids(Ledger(unfinished))
    assert kept == [f"turn-{number}" for number in range(len(kept))]
    assert len(kept) < 20


def test_damaged_log_is_said_and_keeps_what_came_before(unfinished: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = unfinished.with_name("killed.sqlite-wal")
    with log.open("r+b") as file:
        file.seek(log.stat().st_size * 7 // 10)
        file.write(random.Random(7).randbytes(8))
    with caplog.at_level(logging.ERROR):
        kept = turn_ids(Ledger(unfinished))
    assert kept == [f"turn-{number}" for number in range(len(kept))]
    assert 0 < len(kept) < 20
    assert f"the last transactions ({20 - len(kept)}) are lost" in caplog.text


def test_zeroed_log_is_said(unfinished: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = unfinished.with_name("killed.sqlite-wal")
    log.write_bytes(bytes(log.stat().st_size))
    with caplog.at_level(logging.ERROR):
        ledger = Ledger(unfinished)
    assert "killed.sqlite-wal is damaged" in caplog.text
    assert turn_ids(ledger) == []
    ledger.turns.record(make_turn())
