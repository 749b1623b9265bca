"""The benchmark of the tiny demo takes the figures of its start from the run's timeline."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import tiny_demo
from benchmarks.figures import figure_of
from groundwork.start_timeline import DRIVER, GATEWAY, Beginning, Event, Step


def test_first_answer_and_first_step_are_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def demo(words: list[str], **_: object) -> SimpleNamespace:
        run = Path(words[words.index("--run-dir") + 1])
        run.mkdir()
        steps = (Event(21.0, DRIVER, Step.READY_TO_STEP), Event(23.5, GATEWAY, Step.ANSWERED))
        Beginning(0.0, steps).write(run)
        Path(words[words.index("--report") + 1]).write_text('{"seconds_total": 60.0}')
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", demo)
    monkeypatch.setattr(tiny_demo, "describe_machine", dict)
    report = tmp_path / "r.json"
    monkeypatch.setattr(sys, "argv", ["tiny_demo", "--device", "cpu", "--quick", "--json", str(report)])
    assert tiny_demo.main() == 0
    figures = [found for line in capsys.readouterr().out.splitlines() if (found := figure_of(line))]
    values = {found["name"]: found["value"] for found in figures}
    assert values == {
        "tiny demo/whole demo": 60.0,
        "tiny demo/start/first answer": 23.5,
        "tiny demo/start/first step possible": 21.0,
    }
    assert json.loads(report.read_text())["start"][1] == [23.5, GATEWAY, Step.ANSWERED]


def test_a_start_that_got_nowhere_has_no_figure() -> None:
    assert tiny_demo.seconds_of_start([]) == {}
