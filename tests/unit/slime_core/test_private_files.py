"""Other users of the machine read neither conversations nor logs, whatever the umask."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from groundwork.private_files import private, private_folder, private_run_folder
from groundwork.process import spawn
from slime.utils.run_logs import begin_logs


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_and_its_missing_parents_are_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    private_folder(tmp_path / "runs" / "mine" / "logs")
    private_folder(tmp_path / "runs" / "mine" / "logs")
    made = [tmp_path / "runs", tmp_path / "runs" / "mine", tmp_path / "runs" / "mine" / "logs"]
    assert [mode(folder) for folder in made] == [0o700] * 3
    assert mode(tmp_path) == 0o755, "a folder that was there keeps its mode"
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        private_folder(tmp_path / "file")


def test_a_file_is_private_when_it_is_new_and_when_it_is_not(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("a")
    old.chmod(0o644)
    for path in (old, new):
        with open(path, "a", opener=private) as file:
            file.write("b")
        assert mode(path) == 0o600
    assert old.read_text() == "ab"
    with open(os.devnull, "wb", opener=private) as file:
        file.write(b"a device keeps its mode")
    assert mode(Path(os.devnull)) & 0o006


@pytest.mark.parametrize("content", ["", "arguments.json", "logs/engine.log"])
def test_a_run_folder_of_before_is_closed(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "run"
    (folder / content).parent.mkdir(parents=True, exist_ok=True)
    if content:
        (folder / content).touch()
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    assert private_run_folder(folder) is None
    assert mode(folder) == 0o700


def test_a_folder_with_something_else_is_left_open_with_a_warning(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "holiday.jpg").touch()
    assert (private_run_folder(tmp_path) or "").endswith(f"chmod 700 {tmp_path}")
    assert mode(tmp_path) == 0o755
    tmp_path.chmod(0o700)
    assert private_run_folder(tmp_path) is None


def test_the_log_of_a_child_is_private(tmp_path: Path) -> None:
    log = tmp_path / "run" / "child.log"
    spawn([sys.executable, "-c", "print('hello')"], log_path=log).wait()
    assert log.read_text() == "hello\n"
    assert (mode(log), mode(log.parent)) == (0o600, 0o700)


def test_the_logs_of_an_older_run_become_private(tmp_path: Path) -> None:
    log = tmp_path / "runtime.log"
    log.write_text("before\n")
    log.chmod(0o644)
    begin_logs(tmp_path, resumes=False)
    assert mode(tmp_path / "runtime.log.1") == 0o600


LEDGER_PROGRAM = """
import os, sqlite3, sys
from pathlib import Path
os.umask(0o022)
from openclaw.ledger.conversations import write_conversations
from openclaw.ledger.schema import back_up
from openclaw.ledger.store import Ledger
from lab.testkit.ledger_records import judged_sample
path = Path(sys.argv[1]) / "run" / "ledger.sqlite"
ledger = Ledger(path)
judged_sample(ledger, "turn-0")
back_up(path, 1)
write_conversations(ledger, path.with_name("conversations.jsonl"))
for each in (path.parent, *sorted(path.parent.iterdir())):
    print(each.name, oct(each.stat().st_mode & 0o777))
ledger.close()
path.chmod(0o644)
ledger = Ledger(path)
judged_sample(ledger, "turn-1")
print(*(oct(each.stat().st_mode & 0o777) for each in sorted(path.parent.glob("ledger.sqlite*"))))
"""


def test_a_ledger_and_all_its_files_are_private(tmp_path: Path, repository: Path) -> None:
    command = [sys.executable, "-c", LEDGER_PROGRAM, str(tmp_path)]
    said = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [
        "run 0o700",
        "conversations.jsonl 0o600",
        "ledger.sqlite 0o600",
        "ledger.sqlite-shm 0o600",
        "ledger.sqlite-wal 0o600",
        "ledger.sqlite.v1.backup 0o600",
        "0o600 0o600 0o600 0o600",
    ]
