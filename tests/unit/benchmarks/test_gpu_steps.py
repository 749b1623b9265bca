"""The program that measures a GPU keeps what it had: figures of a step that fails, hangs or cannot run, and a file after each."""

from __future__ import annotations

import ast
import json
import signal
import sys
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from benchmarks import gpu, trainer
from benchmarks.figures import described, figure_of, record_figure
from benchmarks.gpu_parts import machine
from benchmarks.gpu_parts.run_step import run
from benchmarks.gpu_parts.steps import STEPS, Step, refusal
from lab.testkit.processes import assert_all_gone
from tests.helpers.syntax import parsed

FOUND: dict[str, Any] = {"torch": "2", "torch_cuda": "13", "nccl": None, "gpus": [{"name": "x"}], "missing": []}
FIGURE = "from benchmarks.figures import record_figure as r; r('a/b', 1.5, 's', limit=2.0)\n"


@dataclass(frozen=True)
class Script(Step):
    """A step that is a few lines of Python."""

    text: str = ""

    def command(self, folder: Path, report: Path, *, quick: bool = False) -> list[str]:
        return ["-c", self.text]


def script(name: str, text: str, **changes: Any) -> Script:
    return Script(name, "benchmarks.none", text=text, **changes)


def measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steps: list[Step], found: dict[str, Any] = FOUND, **options: Any
) -> tuple[int, Any]:
    """Return the exit status and the file's document."""
    monkeypatch.setattr(gpu, "STEPS", steps)
    file = tmp_path / "folder" / "figures.json"
    given = {"json": file, "only": None, "minutes": 10.0, "device": "cuda", "quick": False} | options
    status = gpu.measure(SimpleNamespace(**given), found)
    return status, json.loads(file.read_text())


def test_a_figure_survives_the_way_through_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    record_figure("engine/push", 0.123456789, "s", limit=30)
    line = capsys.readouterr().out
    figure = {"name": "engine/push", "value": 0.12346, "unit": "s", "limit": 30.0}
    assert figure_of(line.strip()) == figure
    assert figure_of("..s" + line.strip()) == figure
    assert described(figure) == "engine/push: 0.12346 s (limit 30)"
    for other in ("a figure {", "figure {}", "figure of speech", ""):
        assert figure_of(other) is None
    with pytest.raises(ValueError, match="nan"):
        record_figure("engine/push", float("nan"), "s")


def test_a_failed_step_keeps_its_figures_its_log_and_its_last_words(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    text = f"print('first words')\n{FIGURE}raise SystemExit('it broke')"
    found = run(script("fails", text), 60, heard.append, tmp_path / "log")
    assert [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()] == ["first", "figure", "it"]
    assert (found["status"], found["reason"]) == ("failed", "exit status 1")
    assert found["figures"] == heard == [{"name": "a/b", "value": 1.5, "unit": "s", "limit": 2.0}]
    assert found["output"][-1] == "it broke"


def test_a_step_that_hangs_is_ended(tmp_path: Path) -> None:
    found = run(script("hangs", "import time; time.sleep(600)"), 1.0, lambda figure: None, tmp_path / "log")
    assert (found["status"], found["reason"]) == ("timed out", "it did not end within 1 s")


def test_an_interrupt_ends_a_step_with_all_its_processes(tmp_path: Path) -> None:
    """It has a child that ignores the polite signal and holds the output open."""
    child = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    text = (
        f"import subprocess, sys, time; c = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE);"
        f"c.stdout.readline(); open({str(tmp_path / 'pid')!r}, 'w').write(str(c.pid))\n{FIGURE}time.sleep(600)"
    )

    children: list[psutil.Process] = []

    def interrupt(figure: dict[str, Any]) -> None:
        children.append(psutil.Process(int((tmp_path / "pid").read_text())))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(script("is interrupted", text), 600, interrupt, tmp_path / "log")
    assert_all_gone(children)


def test_the_other_steps_run_and_the_file_is_whole_after_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "folder" / "figures.json"
    look = f"import json; assert list(json.load(open({str(file)!r}))['steps']) == ['fails']\n"
    steps = [
        script("fails", "raise SystemExit(3)"),
        script("reads the file", look + FIGURE),
        script("needs a package", FIGURE, needs=("sglang",)),
        script("needs two", FIGURE, gpus=2),
    ]
    status, document = measured(monkeypatch, tmp_path, steps, FOUND | {"missing": ["sglang"]})
    assert status == 1
    found = {name: (result["status"], result.get("reason")) for name, result in document["steps"].items()}
    assert found == {
        "fails": ("failed", "exit status 3"),
        "reads the file": ("ok", None),
        "needs a package": ("skipped", "needs sglang"),
        "needs two": ("skipped", "needs 2 CUDA devices, 1 seen"),
    }
    assert "a/b: 1.5 s (limit 2)" in capsys.readouterr().out
    assert document["machine"]["gpus"] == [{"name": "x"}]
    logs = {path.name for path in file.with_suffix(".logs").iterdir()}
    assert logs == {"fails.log", "reads_the_file.log"}
    assert document["steps"]["fails"]["log"] == str(file.with_suffix(".logs") / "fails.log")


def test_without_time_left_nothing_is_begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    steps = [script("late one", FIGURE), script("never", FIGURE, gpus=2)]
    status, document = measured(monkeypatch, tmp_path, steps, minutes=0.1)
    assert '--only "late one"\n' in capsys.readouterr().out
    assert (status, document["steps"]["late one"]["status"]) == (0, "skipped")
    assert "--minutes 0.1" in document["steps"]["late one"]["reason"]


def test_without_a_gpu_it_says_so_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setattr(machine, "probe", lambda packages: FOUND | {"gpus": []})
    monkeypatch.setattr(machine, "driver_version", lambda: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["gpu", "--json", str(tmp_path / "x.json")])
    assert gpu.main() == gpu.NO_GPU
    assert "sees no CUDA device (driver: nvidia-smi gives none)" in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()


def test_every_gpu_test_is_a_step_and_every_target_exists(repository: Path) -> None:
    files = {f"tests/gpu/{path.name}" for path in (repository / "tests" / "gpu").glob("test_*.py")}
    assert {step.target for step in STEPS if step.is_test} == files
    assert len({step.name for step in STEPS}) == len(STEPS)
    for step in STEPS:
        if not step.is_test:
            source = (repository / f"{step.target.replace('.', '/')}.py").read_text()
            flags = {word for word in (*step.words, "--device", "--json", "--quick") if word.startswith("--")}
            assert all(f'"{flag}"' in source for flag in flags), (step.name, flags)


def test_the_most_telling_steps_have_the_first_ten_minutes() -> None:
    """A limit has room, so limits add up to more; twenty minutes are the most that a run on one GPU without an engine takes."""
    one_gpu = [step for step in STEPS if refusal(step, gpus=1, missing=["sglang", "ray", "megatron"]) is None]
    assert sum(step.seconds for step in one_gpu) <= 1200
    first = ["engine tests", "trainer 0.6B, 16k tokens", "parity", "trainer 4B, 32k tokens", "losses", "weight push"]
    assert [step.name for step in STEPS[: len(first)]] == first
    assert sum(step.seconds for step in STEPS[: len(first)]) <= 1200
    assert refusal(STEPS[0], gpus=1, missing=[]) is None
    assert refusal(STEPS[0], gpus=1, missing=["sglang"]) == "needs sglang"


def test_the_sides_of_a_step_exist() -> None:
    for step in STEPS:
        if step.target == "benchmarks.trainer":
            words = step.words[step.words.index("--sides") + 1 :]
            sides = [word for word in words if not word.startswith("--")]
            assert set(sides) <= set(trainer.SIDES), step.name


def test_every_name_of_torch_cuda_exists(repository: Path) -> None:
    """Lines that only run on a GPU name functions that torch has."""
    import torch

    checked = 0
    for folder in ("benchmarks", "tests/gpu", "tests/helpers", "slime/slime"):
        for path in (repository / folder).rglob("*.py"):
            if "torch.cuda." not in path.read_text():
                continue
            for node in ast.walk(parsed(path)):
                name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
                if name.startswith("torch.cuda.") and "(" not in name:  # of f(x).y the f is looked at
                    checked += 1
                    assert reduce(getattr, name.split(".")[1:], torch) is not None, f"{path}: {name}"
    assert checked > 20
