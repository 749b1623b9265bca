"""A demo that was stopped says how to continue it, and a continued one takes over what the first part measured."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
from measure import Item, Measurement, Reply

from groundwork.checkpoint_names import LATEST
from lab import demo
from lab.tiny_demo import options as tiny_options
from lab.tiny_demo import resume
from lab.tiny_demo.launched import Settings
from openclaw.launch.report import STARTED_AS
from openclaw.ledger.store import Ledger

BEFORE = Measurement((Reply(Item("1 + 1?", "2"), "**2**", True, 3, "0", False),))


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RESUME", STARTED_AS):
        monkeypatch.delenv(name, raising=False)


def stopped_run(folder: Path, *words: str, updates: int = 3) -> Path:
    """A run's folder as Ctrl-C leaves it after three updates."""
    (folder / "checkpoints").mkdir(parents=True)
    options = demo.parse(["--run-dir", str(folder), "--heldout", "1", "--seed", "7", *words])
    options.state.before = BEFORE
    options.state.history = [{"update": 3, "seconds": 9.0}]
    options.state.save(folder)
    Ledger(folder / "checkpoints" / "ledger.sqlite").close()
    (folder / "checkpoints" / LATEST).write_text(str(updates))
    return folder


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_a_resumed_demo_goes_on_where_it_was(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = stopped_run(tmp_path / "run", "--lr", "1e-4")
    words = ["--run-dir", str(run_dir)]
    if how == "variable":
        monkeypatch.setenv("RESUME", "1")
    else:
        words.append("--resume")
    options = demo.parse(words)
    assert (options.seed, options.heldout, options.launcher_arguments) == (7, 1, ["--lr", "1e-4"])
    assert options.state.before == BEFORE
    assert options.state.history == [{"update": 3, "seconds": 9.0}]
    assert options.state.speaker(options.seed) == ("student-part2", 2007)
    settings = demo.settings_of(options)
    environment = settings.environment(dict(os.environ))
    assert environment["RESUME"] == "1"
    assert environment["OPENCLAW_LEDGER"] == str(run_dir / "checkpoints" / "ledger.sqlite")


def test_what_the_line_says_wins_over_the_first_part(tmp_path: Path) -> None:
    run_dir = stopped_run(tmp_path / "run")
    options = demo.parse(["--run-dir", str(run_dir), "--resume", "--updates", "20", "--lr", "1e-5"])
    assert (options.updates, options.launcher_arguments) == (20, ["--lr", "1e-5"])


def test_without_a_folder_the_newest_stopped_run_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_options, "REPOSITORY", tmp_path)
    with pytest.raises(SystemExit):
        demo.parse(["--resume"])
    for name in ("combine-1", "combine-2", "rl-3", "combine-4"):
        stopped_run(tmp_path / "runs" / f"tiny-cpu-{name}")
    (tmp_path / "runs" / "tiny-cpu-combine-4" / "report.json").write_text("{}")
    assert demo.parse(["--resume", "--method", "combine"]).run_dir == tmp_path / "runs" / "tiny-cpu-combine-2"


@pytest.mark.parametrize("words", [(), ("--device", "cpu")])
def test_a_demo_that_does_not_remember_its_device_goes_on_on_the_cpu(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = stopped_run(tmp_path / "run")
    state = json.loads((run_dir / resume.STATE_NAME).read_text())
    del state["options"]["device"]
    (run_dir / resume.STATE_NAME).write_text(json.dumps(state))
    monkeypatch.setattr(tiny_options, "device_here", lambda: "cuda")
    assert demo.parse(["--run-dir", str(run_dir), "--resume", *words]).device == "cpu"


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("here", resume.DEVICES)
def test_a_stopped_run_of_either_device_is_found_unless_one_is_asked_for(
    live: bool, here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_options, "REPOSITORY", tmp_path)
    monkeypatch.setattr(tiny_options, "device_here", lambda: here)
    words, kind = (["--live"], "live-") if live else ([], "")
    for name, device in (
        (f"gpu-{kind}combine-2", "cuda"),
        (f"cpu-{kind}combine-3", "cpu"),
        (f"gpu-{kind}rl-4", "cuda"),
    ):
        run_dir = stopped_run(tmp_path / "runs" / f"tiny-{name}", "--device", device)
        if live:
            (run_dir / resume.STATE_NAME).unlink()
    found = [demo.parse(["--resume", "--method", "combine", *words, *more]) for more in ([], ["--device", "cuda"])]
    assert [(each.run_dir.name, each.device) for each in found] == [
        (f"tiny-cpu-{kind}combine-3", "cpu"),
        (f"tiny-gpu-{kind}combine-2", "cuda"),
    ]


@pytest.mark.parametrize(
    ("words", "updates", "says"),
    [
        ((), 3, "already has a run; add --resume to continue it, or name another folder"),
        (("--resume",), 16, "has 16 updates of 16; add --updates 32"),
        (("--resume", "--heldout", "4"), 3, "--heldout 4: the first part measured 1 problems; leave it out"),
    ],
)
def test_a_run_that_cannot_go_on_says_what_to_type(
    words: tuple[str, ...], updates: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = stopped_run(tmp_path / "run", updates=updates)
    with pytest.raises(SystemExit) as stopped:
        demo.parse(["--run-dir", str(run_dir), *words])
    assert stopped.value.code == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_a_persons_run_without_a_checkpoint_begins_again_in_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = stopped_run(tmp_path / "run")
    (run_dir / "checkpoints" / LATEST).unlink()
    assert demo.parse(["--live", "--run-dir", str(run_dir)]).run_dir == run_dir
    with pytest.raises(SystemExit):
        demo.parse(["--run-dir", str(run_dir)])
    assert "already has a run; name another folder" in " ".join(capsys.readouterr().err.split())


def test_a_folder_without_a_checkpoint_cannot_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.parse(["--run-dir", str(tmp_path), "--resume"])
    assert "holds no checkpoint; start without --resume" in capsys.readouterr().err


def test_ctrl_c_prints_the_line_that_continues(tmp_path: Path) -> None:
    run_dir = stopped_run(tmp_path / "run")
    options = demo.parse(["--run-dir", str(run_dir), "--resume"])
    started = {STARTED_AS: "'bash' 'openclaw-combine/run_tiny_cpu.sh' '--updates' '20'"}
    *looks, again = resume.last_lines(options, ["demo.py"], started)
    assert [shlex.split(look)[-2:] for look in looks] == [
        ["report", str(run_dir)],
        ["doctor", str(run_dir)],
        ["inspect", str(run_dir)],
    ]
    expected = ["bash", "openclaw-combine/run_tiny_cpu.sh", "--updates", "20", "--run-dir", str(run_dir), "--resume"]
    assert shlex.split(again) == ["continue", *expected]
    assert demo.parse(expected[2:]).updates == 20
    (run_dir / "checkpoints" / LATEST).unlink()
    assert resume.last_lines(options, ["demo.py"], started)[-1].endswith("there is nothing to continue: start it again")


def test_a_new_run_does_not_inherit_resume(tmp_path: Path) -> None:
    settings = Settings("rl", 1, 0, 30000, tmp_path, tmp_path)
    assert settings.environment({"RESUME": "1"})["RESUME"] == ""
