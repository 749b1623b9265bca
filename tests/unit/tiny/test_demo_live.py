"""`--live`: the run without a student, with the launcher in this process's place."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from lab import demo
from lab.tiny_demo import live
from lab.tiny_demo import options as tiny_options
from lab.tiny_demo.launched import ENDLESS
from openclaw.launch.report import STARTED_AS
from slime.arguments.checkpoint import CONTINUE_VARIABLE
from tests.helpers.checkpoints import published

SCRIPT = "bash openclaw-combine/run_tiny_cpu.sh --live"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """What the process becomes, instead of becoming it."""
    for name in (*live.VARIABLES, CONTINUE_VARIABLE, "RESUME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(STARTED_AS, SCRIPT)
    monkeypatch.setattr(demo, "ensure_built", lambda console: Path("model"))
    monkeypatch.setattr(demo.LaunchedRun, "check_port", lambda run: None)
    found: list[tuple[list[str], dict[str, str]]] = []

    def execve(path: str, command: list[str], environment: dict[str, str]) -> None:
        found.append((command, environment))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)
    return found


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["demo.py", *words])
    with pytest.raises(SystemExit) as ended:
        demo.main()
    assert ended.value.code == 0


def test_the_process_becomes_the_launcher_and_learns_until_it_is_stopped(
    started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(monkeypatch, "--live", "--run-dir", str(tmp_path / "run"), "--lr-warmup-iters", "0")
    command, environment = started[0]
    assert command[1:] == shlex.split("-m openclaw.launch --profile tiny_cpu --method combine --lr-warmup-iters 0")
    assert environment["NUM_ROLLOUT"] == str(ENDLESS)
    assert environment["BATCH_SIZE"] == live.VARIABLES["BATCH_SIZE"]
    assert environment["RUN_DIR"] == str(tmp_path / "run")
    assert environment[CONTINUE_VARIABLE] == f"{SCRIPT} --run-dir {tmp_path / 'run'} --resume"


def test_what_the_person_sets_wins(started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_SIZE", "2")
    run(monkeypatch, "--live", "--run-dir", str(tmp_path / "run"))
    assert started[0][1]["BATCH_SIZE"] == "2"


def test_it_resumes_its_own_newest_run(started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_options, "REPOSITORY", tmp_path)
    for name in ("live-combine-1", "live-combine-2", "combine-3", "live-rl-4"):
        published(tmp_path / "runs" / f"tiny-cpu-{name}" / "checkpoints", 40)
    run(monkeypatch, "--live", "--resume")
    environment = started[0][1]
    assert environment["RUN_DIR"] == str(tmp_path / "runs" / "tiny-cpu-live-combine-2")
    assert environment["RESUME"] == "1"


@pytest.mark.parametrize(
    "words", ["--updates 3", "--sessions 2", "--keep-serving", "--report r.json", "--client plain"]
)
def test_an_option_of_the_student_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        demo.parse(["--live", *words.split()])
    assert ended.value.code == 2
    flag = words.split()[0]
    assert f"{flag} is for the simulated student, and with --live you are the one who talks; leave it out" in " ".join(
        capsys.readouterr().err.split()
    )


def test_the_dry_run_shows_the_plan_of_the_live_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})
    monkeypatch.setattr(sys, "argv", ["demo.py", "--live", "--dry-run", "--run-dir", str(tmp_path / "run")])
    assert demo.main() == 0
    output = capsys.readouterr().out
    assert "learns   from 4 judged turns per step" in output
    assert output.splitlines()[-1] == "dry run: the plan is valid, nothing was started"


def test_the_dry_run_leaves_out_what_the_demo_ignores(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A guide has these exported when a launch script names the demo as the one for a machine without GPUs."""
    of_guide = {"MODEL_PATH": "/path/to/qwen3-7b", "CKPT_SAVE_DIR": "/c", "DATA_PATH": "/d", "JUDGE_MODEL_PATH": "/j"}
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"], **of_guide})
    words = [
        "--dry-run",
        "--run-dir",
        str(tmp_path / "run"),
        "--config",
        str(repository / "config" / "training_config.yaml"),
    ]
    monkeypatch.setattr(sys, "argv", ["demo.py", *words])
    assert demo.main() == 0
    said = capsys.readouterr()
    assert [line for line in said.err.splitlines() if "is ignored: " not in line] == []
    assert "; to train on recorded conversations here, type: HF_CKPT=" in said.err
    assert said.out.splitlines()[-1] == "dry run: the plan is valid, nothing was started"
    assert not any(f"  {name}=" in said.out for name in of_guide)


def test_a_run_that_keeps_serving_goes_on_learning(tmp_path: Path) -> None:
    options = demo.parse(["--keep-serving", "--run-dir", str(tmp_path / "run")])
    assert demo.settings_of(options).environment({})["NUM_ROLLOUT"] == str(ENDLESS)
    options = demo.parse(["--run-dir", str(tmp_path / "run")])
    assert demo.settings_of(options).environment({})["NUM_ROLLOUT"] == "16"


@pytest.mark.parametrize("name", ["PORT", "OPENCLAW_PORT"])
def test_the_port_of_the_environment_counts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "30100")
    options = demo.parse(["--live", "--run-dir", str(tmp_path / "run")])
    environment = demo.settings_of(options).environment({name: "30100"})
    assert (options.port, environment["PORT"], environment.get("OPENCLAW_PORT")) == (30100, "30100", None)
    assert demo.parse(["--live", "--run-dir", str(tmp_path / "run"), "--port", "30200"]).port == 30200


@pytest.mark.parametrize(
    ("typed", "meant"), [("--lvie", "--live"), ("--update", "--updates"), ("--verbos", "--verbose")]
)
def test_the_dry_run_names_the_flag_that_was_meant(
    typed: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})
    monkeypatch.setattr(sys, "argv", ["demo.py", "--dry-run", "--run-dir", str(tmp_path / "run"), typed])
    with pytest.raises(SystemExit):
        demo.main()
    assert f"unknown argument {typed}; did you mean {meant}?" in capsys.readouterr().err
