"""A fresh run in a used folder starts fresh logs; a resumed one says in the older logs where it begins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slime.utils.run_logs import begin_logs


@pytest.fixture
def used(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    for name in ("runtime.log", "logs/processes.log"):
        (tmp_path / name).write_text("first run\n")
    return tmp_path


def test_a_fresh_run_sets_the_older_logs_aside(used: Path) -> None:
    begin_logs(used, resumes=False)
    assert not list(used.rglob("*.log"))
    (used / "runtime.log").write_text("second run\n")
    begin_logs(used, resumes=False)
    assert (used / "runtime.log.1").read_text() == "second run\n"
    assert (used / "logs" / "processes.log.1").read_text() == "first run\n"


def test_a_resumed_run_marks_its_begin(used: Path) -> None:
    begin_logs(used, resumes=True, command=["train_async.py", "--save", "a b"])
    first, mark = (used / "runtime.log").read_text().splitlines()
    assert first == "first run"
    assert mark.endswith("resumed: train_async.py --save 'a b' =====")
    assert not list(used.rglob("*.log.1"))


def test_the_file_that_this_process_writes_to_stays(used: Path) -> None:
    child = os.fork()
    if not child:
        os.dup2(os.open(used / "runtime.log", os.O_WRONLY | os.O_APPEND), 1)
        begin_logs(used, resumes=False)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert [path.name for path in used.rglob("*.log*")] == ["runtime.log", "processes.log.1"]


@pytest.mark.parametrize("resumes", [False, True])
def test_a_log_that_somebody_else_writes_stays(used: Path, resumes: bool) -> None:
    (used / "mine.log").write_text("of the shell that started it\n")
    begin_logs(used, resumes=resumes)
    assert (used / "mine.log").read_text() == "of the shell that started it\n"
