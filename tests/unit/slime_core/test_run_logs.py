"""A fresh run in a used folder starts fresh logs; a resumed one says in the older logs where it begins."""

from __future__ import annotations

import logging
import os
import re
import stat
from pathlib import Path

import pytest

from slime.updates.decisions import PluginThread
from slime.utils import run_logs
from slime.utils.run_logs import begin_logs, begin_training_log, ended_training_log, note, say


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


def lines_of(folder: Path) -> list[str]:
    lines = (folder / "logs" / "training.log").read_text().splitlines()
    assert all(re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines)
    return [line[len("2026-01-01 00:00:00 ") :] for line in lines]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of its own."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    monkeypatch.setattr(run_logs, "CHECKOUT", folder)
    return folder


def test_the_training_log_has_what_the_terminal_shows(
    tmp_path: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    say("before the run")
    with ended_training_log():
        begin_training_log(tmp_path)
        assert lines_of(tmp_path) == [], "it is there at once, for tail -f"
        say("step 0  reward +0.125")
        note("[rank 1] error: no memory")
        logging.getLogger("slime.x").warning("slow")
        try:
            raise OSError("gone")
        except OSError:
            logging.getLogger("slime.x").exception("the run failed")
        logging.getLogger("slime.x").info("a detail")
        say("the run failed: OSError: gone")
    say("after the run")
    logging.getLogger("slime.x").warning("after the run")
    first, second, third, failed, *trace, last = lines_of(tmp_path)
    assert [first, second, third] == ["step 0  reward +0.125", "[rank 1] error: no memory", "warning: slow"]
    assert (failed, trace[0]) == ("error: the run failed", "Traceback (most recent call last):")
    assert (trace[-1], last) == ("OSError: gone", "the run failed: OSError: gone")
    assert "step 0  reward +0.125\n" in capsys.readouterr().out
    assert stat.S_IMODE((tmp_path / "logs" / "training.log").stat().st_mode) == 0o600


def test_a_plugin_in_the_driver_may_log_details(tmp_path: Path, checkout: Path) -> None:
    """Its own thread's details are kept, and neither those of the driver nor a line per request."""
    plugin, level = logging.getLogger("mine.gate"), logging.getLogger().level

    def decide() -> str:
        thread.call(lambda: logging.getLogger("slime.x").info("of the driver's thread"))
        plugin.info("rollout %d: both versions are compared", 3)
        logging.getLogger("httpx").info("HTTP Request: POST /generate")
        return "accepted"

    thread = PluginThread(look_after=lambda: None)
    with ended_training_log():
        begin_training_log(tmp_path)
        assert thread.run(decide) == "accepted"
        plugin.info("of the driver's thread")
        assert lines_of(tmp_path) == ["info: rollout 3: both versions are compared"]
    assert logging.getLogger().level == level


def test_the_terminal_still_gets_warnings(tmp_path: Path, checkout: Path) -> None:
    """Python prints them by itself only as long as nobody handles them."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        with ended_training_log():
            begin_training_log(tmp_path)
            assert logging.lastResort in root.handlers
    finally:
        root.handlers = before


def test_a_resumed_run_goes_on_in_its_training_log(tmp_path: Path, checkout: Path) -> None:
    for resumes in (False, True):
        begin_logs(tmp_path, resumes=resumes, command=["train"])
        with ended_training_log():
            begin_training_log(tmp_path)
            say("step")
    text = (tmp_path / "logs" / "training.log").read_text()
    assert re.fullmatch(r"\S+ \S+ step\n===== .* resumed: train =====\n\S+ \S+ step\n", text)


def test_the_link_leads_to_the_newest_run(tmp_path: Path, checkout: Path) -> None:
    with ended_training_log():
        for name in ("one", "two"):
            begin_training_log(tmp_path / name)
            say(name)
    link = checkout / "logs"
    assert link.resolve() == tmp_path / "two" / "logs"
    assert (link / "training.log").read_text().endswith("two\n")
    assert lines_of(tmp_path / "one") == ["one"]
    assert sorted(path.name for path in checkout.iterdir()) == ["logs", "pyproject.toml"]


def test_runs_that_start_at_once_leave_one_whole_link(tmp_path: Path, checkout: Path) -> None:
    link, folders = checkout / "logs", [tmp_path / str(number) / "logs" for number in range(4)]
    run_logs._link_newest(link, folders[0])
    children = []
    for folder in folders:
        if not (child := os.fork()):
            for _ in range(20):
                run_logs._link_newest(link, folder)
            os._exit(0)
        children.append(child)
    while children:
        assert link.readlink() in folders, "a reader finds one at any moment"
        if (ended := os.waitpid(-1, os.WNOHANG))[0]:
            children.remove(ended[0])
            assert ended[1] == 0
    assert [path.name for path in checkout.iterdir() if path.name != "pyproject.toml"] == ["logs"]


def test_a_folder_of_that_name_stays(tmp_path: Path, checkout: Path) -> None:
    (checkout / "logs").mkdir()
    with ended_training_log():
        begin_training_log(tmp_path)
    assert not (checkout / "logs").is_symlink()


def test_a_package_elsewhere_makes_no_link(tmp_path: Path, checkout: Path) -> None:
    (checkout / "pyproject.toml").unlink()
    with ended_training_log():
        begin_training_log(tmp_path)
    assert not list(checkout.iterdir())


def test_a_log_that_cannot_be_written_stops_nothing(
    tmp_path: Path, checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ended_training_log():
        begin_training_log(tmp_path)
        log = tmp_path / "logs" / "training.log"
        log.unlink()
        log.mkdir()
        say("step 0")
        say("step 1")
    said = capsys.readouterr()
    assert said.out == "step 0\nstep 1\n"
    assert said.err.count("\n") == 1
    assert "training.log cannot be written (Is a directory); the terminal has the rest" in said.err
