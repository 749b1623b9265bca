"""How a person names a run: a folder, or ``newest``; what is said where there is none; the list of runs; the version."""

from __future__ import annotations

import os
import tomllib
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest

from openclaw.__main__ import main
from openclaw.ledger.store import Ledger
from openclaw.runs.__main__ import age
from openclaw.runs.__main__ import main as runs
from openclaw.runtime import where

OPTIONAL = ("openclaw.report.__main__", "openclaw.doctor.__main__", "openclaw.gate.versions")
REQUIRED = {
    "openclaw.inspect": [],
    "openclaw.replay": ["--method", "rl"],
    "openclaw.gate.rollback": ["--to", "1"],
    "openclaw.gate.accept": [],
    "openclaw.resume": [],
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs: an old and a new one with a ledger, and the run of an agent, which is newer than both."""
    place = tmp_path / "runs"
    monkeypatch.setattr(where, "RUNS", place)
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("old", "new", "agent", "no-run")):
        (place / name).mkdir(parents=True)
        if name in ("old", "new"):
            with closing(Ledger(place / name / "ledger.sqlite")):
                pass
        if name == "agent":
            (place / name / "logs").mkdir()
        for each in (*(place / name).iterdir(), place / name):
            os.utime(each, (1e9 + number, 1e9 + number))
    return place


def test_newest_is_the_newest_run_with_a_ledger(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert where.run_place("newest") == Path("runs/new")
    assert capsys.readouterr().err == "the newest run: runs/new\n"
    os.utime(home / "old" / "ledger.sqlite", (2e9, 2e9))
    assert where.run_place("newest") == Path("runs/old")
    assert where.run_place("runs/new") == Path("runs/new")


@pytest.mark.parametrize("module", OPTIONAL)
def test_a_look_at_a_run_takes_the_newest_one(module: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import_module(module).main([])
    assert capsys.readouterr().err.startswith("the newest run: runs/new\n")


@pytest.mark.parametrize("module", sorted(REQUIRED))
def test_a_command_that_needs_a_run_says_how_to_name_one(
    module: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = import_module(module).main
    with pytest.raises(SystemExit) as ended:
        command(REQUIRED[module])
    said = capsys.readouterr().err
    assert (ended.value.code, said.count("\n")) == (2, 1)
    assert "RUN is the word newest, or a folder that openclaw-rl runs lists" in said
    command(["newest", *REQUIRED[module]])
    assert capsys.readouterr().err.startswith("the newest run: runs/new\n")


def test_without_any_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(where, "RUNS", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    for module in (*OPTIONAL, "openclaw.inspect"):
        with pytest.raises(SystemExit):
            import_module(module).main(["newest"])
        assert "there is no run in runs yet; start one, or name its folder" in capsys.readouterr().err
    assert runs([]) == 2
    assert "bash openclaw-combine/run_tiny_cpu.sh" in capsys.readouterr().err


def test_the_list_of_runs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs([]) == 0
    lines = [line.split("ago")[1].split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["no", "ledger", "runs/agent"], ["conversations", "runs/new"], ["conversations", "runs/old"]]
    assert [age(seconds) for seconds in (0, 59, 60, 7300, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]


@pytest.mark.parametrize("word", ["--version", "-V", "version"])
def test_the_version(word: str, repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    version = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["version"]
    assert main([word]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"openclaw-rl {version}")
    assert said.endswith(f" in {repository}\n")
