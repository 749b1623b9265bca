"""``openclaw-rl versions``, ``rollback`` and ``accept`` on folders of runs, up and down."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from groundwork.checkpoint_names import LATEST
from openclaw.gate import accept, rollback, versions
from openclaw.ledger.store import Ledger
from openclaw.runtime.where import SETTINGS_NAME
from slime.ray.save_lock import LOCK
from slime.updates.rollback import ask_rollback, asked_rollback, forget_rollback
from tests.helpers.probes import leased_batch


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two accepted steps and one refused, whose checkpoints hold the first and the second version."""
    save = tmp_path / "checkpoints"
    with closing(Ledger(save / "ledger.sqlite")) as ledger:
        ledger.decisions.record(-1, "start", "0", "the weights of the first comparison")
        for number in range(2):
            leased_batch(ledger, number)
            metrics = {"gate/margin": 0.01, "gate/margin_error": 0.002, "gate/tasks_candidate": 0.75}
            ledger.decisions.record(number, "step", str(number + 1), "better", metrics=metrics)
            ledger.samples.record_step(number, str(number + 1), 1.0, 2.0)
            folder = save / f"iter_{number + 1:07d}"
            folder.mkdir()
            (folder / "meta.json").write_text(json.dumps({"rollout_id": number, "weight_version": number + 1}))
        leased_batch(ledger, 2)
        ledger.decisions.record(2, "refused", "3", "version 3 is refused: worse", by_margin=True)
        ledger.decisions.quarantine(2)
    (save / LATEST).write_text("2")
    return tmp_path


@pytest.fixture
def up(run: Path) -> Path:
    """The same run while its driver, this process, lives."""
    (run / "checkpoints" / LOCK).write_text(
        f"process {os.getpid()} on {socket.gethostname()}, run folder {run}, since x"
    )
    return run


def shown(run: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert versions.main([str(run), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_versions_of_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(run, capsys)
    rows = [(each["version"], each["decision"], each["samples"], each["checkpoint"]) for each in found["versions"]]
    assert rows == [
        ("0", "start", 0, False),
        ("1", "accepted", 4, True),
        ("2", "accepted", 4, True),
        ("3", "refused", 4, False),
    ]
    assert [each["version"] for each in found["versions"] if each["serves"]] == ["2"]
    assert [each["live_at"] for each in found["versions"]] == [None, 2.0, 2.0, None]
    assert found["versions"][2]["tasks"] == 0.75
    assert (found["offer"], found["asked"]) == (None, None)
    assert versions.main([str(run)]) == 0
    text = capsys.readouterr().out
    assert "+0.010 ± 0.002" in text
    assert "step 2: version 3 is refused: worse" in text


def test_versions_tell_of_a_rollback_that_a_run_has_not_made_yet(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask_rollback(run, 8)
    assert shown(run, capsys)["asked"] == "8"
    assert versions.main([str(run)]) == 0
    assert (
        "it was asked to go back to version 8, which it does within seconds, or when it is resumed"
        in capsys.readouterr().out
    )


def test_steps_without_a_gate_are_shown_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        leased_batch(ledger, 0)
        ledger.samples.record_step(0, "1", 1.0, 2.0)
    (row,) = shown(tmp_path, capsys)["versions"]
    assert (row["version"], row["why"], row["samples"], row["serves"]) == ("1", "no gate decided", 4, True)


def test_a_run_without_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Ledger(tmp_path / "ledger.sqlite").close()
    assert versions.main([str(tmp_path)]) == 0
    assert "has taken no step yet" in capsys.readouterr().out


def test_accept_needs_refusals_in_a_row(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert accept.main([str(run)]) == 2
    assert "1 of 3 refusals of a series" in capsys.readouterr().err


def test_accept_once(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OPENCLAW_GATE_OFFER", "1")
    offer = shown(run, capsys)["offer"]
    assert offer.startswith("the gate refused 1 batches lately")
    assert f"openclaw-rl accept {run}" in offer
    assert accept.main([str(run)]) == 0
    assert "4 samples are ready again" in capsys.readouterr().out
    assert accept.main([str(run)]) == 2
    assert shown(run, capsys)["versions"][-1]["decision"] == "change accepted"


def test_the_run_s_own_number_of_refusals_counts(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that offers after one refusal is followed from a terminal that knows nothing of its variables."""
    (run / SETTINGS_NAME).write_text('{"OPENCLAW_GATE_OFFER": "1", "PORT": "30000"}')
    assert shown(run, capsys)["offer"].startswith("the gate refused 1 batches lately")
    monkeypatch.setenv("OPENCLAW_GATE_OFFER", "2")
    assert shown(run, capsys)["offer"] is None
    monkeypatch.setenv("OPENCLAW_GATE_OFFER", "two")
    assert versions.main([str(run)]) == accept.main([str(run)]) == 2
    assert capsys.readouterr().err.count("OPENCLAW_GATE_OFFER") == 2
    monkeypatch.setenv("OPENCLAW_GATE_OFFER", "")
    assert accept.main([str(run)]) == 0


@pytest.mark.parametrize("command", [versions.main, accept.main, lambda words: rollback.main([*words, "--to", "1"])])
def test_a_folder_without_a_ledger(command: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command([str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"no ledger in {tmp_path}; name the folder of a run")
    assert said.count("\n") == 1


def test_a_version_without_a_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rollback.main([str(run), "--to", "3"]) == 2
    assert capsys.readouterr().err == "no checkpoint of version 3; checkpoints have 1, 2\n"
    assert asked_rollback(run) is None


def test_a_run_that_is_down_goes_back_when_it_is_resumed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rollback.main([str(run), "--to", "1"]) == 0
    assert "goes back to version 1 when it is resumed" in capsys.readouterr().out
    note = asked_rollback(run)
    assert note is not None
    assert note.version == "1"


class Driver(threading.Thread):
    """Does what the driver does about a note."""

    def __init__(self, run: Path, *, can: bool = True) -> None:
        super().__init__()
        self._run, self._can = run, can

    def run(self) -> None:
        while asked_rollback(self._run) is None:
            threading.Event().wait(0.01)
        if self._can:
            with closing(Ledger(self._run / "checkpoints" / "ledger.sqlite")) as ledger:
                ledger.decisions.record_rollback(0, 2, "4", 9.0)
        forget_rollback(self._run)


def test_a_run_that_is_up_goes_back_at_once(up: Path, capsys: pytest.CaptureFixture[str]) -> None:
    driver = Driver(up)
    driver.start()
    assert rollback.main([str(up), "--to", "1"]) == 0
    driver.join()
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "asked the run to go back to version 1",
        "version 4 serves now: back to version 1; 4 samples are unlearned",
    ]
    assert [each["version"] for each in shown(up, capsys)["versions"] if each["serves"]] == ["4"]


def test_a_run_that_cannot_go_back(up: Path, capsys: pytest.CaptureFixture[str]) -> None:
    driver = Driver(up, can=False)
    driver.start()
    assert rollback.main([str(up), "--to", "1"]) == 1
    driver.join()
    assert "the run did not go back" in capsys.readouterr().err


def test_a_run_that_ends_meanwhile(
    up: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter([True, False])
    monkeypatch.setattr(versions.RunFolder, "is_up", lambda self: next(looks))
    assert rollback.main([str(up), "--to", "1"]) == 0
    assert "has ended meanwhile; it goes back when it is resumed" in capsys.readouterr().out


def test_a_lock_of_a_dead_driver_is_no_run(up: Path) -> None:
    assert versions.open_run(up).is_up()
    lock = up / "checkpoints" / versions.SAVE_LOCK
    lock.write_text(f"process 999999999 on {socket.gethostname()}, run folder")
    assert not versions.open_run(up).is_up()
    lock.write_text("process 1 on elsewhere.example, run folder")
    assert versions.open_run(up).is_up()
    lock.write_text("")
    assert not versions.open_run(up).is_up()
    assert versions.SAVE_LOCK == LOCK
