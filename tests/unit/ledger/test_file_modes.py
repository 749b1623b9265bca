"""Files of a run are their owner's, whatever the shell's umask is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from openclaw.config.private_files import keep_private
from openclaw.ledger.store import Ledger


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_a_new_ledger_is_private(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "run" / "ledger.sqlite")
    modes = {path.name: mode(path) for path in (tmp_path / "run").iterdir()}
    ledger.close()
    assert mode(tmp_path / "run") == 0o700
    assert modes == dict.fromkeys(("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"), 0o600)


def test_an_existing_folder_and_ledger_keep_their_modes(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.sqlite").close()
    (tmp_path / "ledger.sqlite").chmod(0o640)
    tmp_path.chmod(0o750)
    Ledger(tmp_path / "ledger.sqlite").close()
    assert (mode(tmp_path), mode(tmp_path / "ledger.sqlite")) == (0o750, 0o640)


def test_a_private_process_creates_private_files(tmp_path: Path) -> None:
    keep_private()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "log").touch()
    assert [mode(tmp_path / name) for name in ("a", "a/b", "a/log")] == [0o700, 0o700, 0o600]
