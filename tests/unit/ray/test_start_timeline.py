"""The timeline of a start: who writes what, what each step took and waited for, and what a start that stands still says."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from groundwork import start_timeline
from groundwork.start_timeline import (
    DRIVER,
    FILE_NAME,
    GATEWAY,
    LAUNCHER,
    MANAGER,
    STEPS,
    TRAINER,
    VARIABLE,
    Beginning,
    Event,
    StartWatch,
    Step,
    is_over,
    mark,
    read,
    rows,
    waited_for,
)
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.backends.sglang_utils.startup_log import LINES, Startup
from slime.backends.vllm_utils.engine import VLLMEngine

POLICY, JUDGE = "engine-policy-0", "engine-prm-0"
STORY = [
    Event(1.0, LAUNCHER, Step.PLANNED),
    Event(2.0, DRIVER, Step.LOADED),
    Event(6.0, DRIVER, Step.RAY),
    Event(8.0, MANAGER, Step.LOADED),
    Event(9.0, POLICY, Step.LOADED),
    Event(9.5, TRAINER, Step.LOADED),
    Event(20.0, POLICY, Step.LISTENS),
    Event(21.0, JUDGE, Step.LOADED),
    Event(30.0, JUDGE, Step.LISTENS),
    Event(30.0, MANAGER, Step.ENGINES),
    Event(31.0, TRAINER, Step.READY),
    Event(33.0, DRIVER, Step.PUSHED),
    Event(34.0, GATEWAY, Step.STARTED),
    Event(36.0, GATEWAY, Step.LISTENS),
    Event(36.0, DRIVER, Step.READY_TO_STEP),
    Event(40.0, GATEWAY, Step.ANSWERED),
]


def seen(story: list[Event], seconds: float) -> list[Event]:
    return [event for event in story if event.seconds <= seconds]


def test_a_row_says_what_it_took_and_whom_it_waited_for() -> None:
    facts = {(row.event.process, row.event.step): row[1:] for row in rows(STORY)}
    assert facts[DRIVER, Step.LOADED] == (1.0, 0.0, f"{LAUNCHER}: {Step.PLANNED}")
    assert facts[DRIVER, Step.RAY] == (4.0, 0.0, "")
    assert facts[JUDGE, Step.LOADED] == (1.0, 0.0, f"{POLICY}: {Step.LISTENS}"), "it started after the policy's engine"
    assert facts[MANAGER, Step.ENGINES] == (0.0, 22.0, f"{JUDGE}: {Step.LISTENS}")
    assert facts[DRIVER, Step.PUSHED] == (2.0, 25.0, f"{TRAINER}: {Step.READY}")
    assert facts[DRIVER, Step.READY_TO_STEP] == (0.0, 3.0, f"{GATEWAY}: {Step.LISTENS}")
    assert rows(STORY)[0].line() == "start       1.0 s  launcher: plan checked (1.0 s)"


def test_a_start_that_stands_still_names_the_steps_that_nobody_else_delays() -> None:
    assert waited_for(seen(STORY, 6.0)) == [
        f"{DRIVER}: {Step.PUSHED} (last: {Step.RAY}, at 6 s)",
        f"{MANAGER}: {Step.LOADED}",
    ]
    assert waited_for(seen(STORY, 29.0)) == [
        f"{TRAINER}: {Step.MODEL} (last: {Step.LOADED}, at 10 s)",
        f"{JUDGE}: {Step.STARTED} (last: {Step.LOADED}, at 21 s)",
    ], "driver and manager wait for these two"
    assert waited_for(seen(STORY, 34.0)) == [f"{GATEWAY}: {Step.LOADED} (last: {Step.STARTED}, at 34 s)"]
    assert waited_for(STORY) == []


def test_it_is_over_with_the_first_answer() -> None:
    assert not is_over(seen(STORY, 36.0))
    assert is_over(STORY)
    assert is_over([event for event in STORY if event.process != GATEWAY]), "a run without a gateway answers nobody"


def test_programs_hand_their_steps_on_and_every_process_counts_from_the_command(tmp_path: Path) -> None:
    script = {VARIABLE: json.dumps({"command": time.time() - 5.0})}
    launcher = Beginning.read(script)
    launcher.mark(LAUNCHER, Step.PLANNED)
    driver = Beginning.read(launcher.carried())
    driver.mark(DRIVER, Step.LOADED)
    mark(tmp_path, TRAINER, Step.LOADED)
    assert not (tmp_path / FILE_NAME).exists(), "only the driver begins it"
    driver.write(tmp_path)
    mark(tmp_path, TRAINER, Step.LOADED)
    mark(tmp_path, TRAINER, Step.LOADED)
    mark(None, TRAINER, Step.MODEL)
    events = read(tmp_path)
    assert [(event.process, event.step) for event in events] == [
        (LAUNCHER, Step.PLANNED),
        (DRIVER, Step.LOADED),
        (TRAINER, Step.LOADED),
    ]
    assert all(5.0 <= event.seconds < 8.0 for event in events)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert read(tmp_path, since=time.time()) == [], "an earlier start's"


def test_another_machine_counts_by_the_time_of_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Beginning(start_timeline._now() - 100.0).write(tmp_path)
    monkeypatch.setattr(start_timeline, "this_host", lambda: "another")
    monkeypatch.setattr(start_timeline, "_now", lambda: 7.0)
    mark(tmp_path, JUDGE, Step.LISTENS)
    assert read(tmp_path)[0].seconds == pytest.approx(100.0, abs=2.0)


def test_a_program_without_a_script_counts_from_its_own_start() -> None:
    beginning = Beginning.read({VARIABLE: "no JSON"})
    beginning.mark(DRIVER, Step.LOADED)
    assert 0.0 < beginning.events[0].seconds < 3600.0


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    Beginning(0.0).write(tmp_path)
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('{"seconds": 3.0, "process": "driver", "step": "Ray is up"}\n{"seconds": 4.0, "proc')
    assert read(tmp_path) == [Event(3.0, DRIVER, Step.RAY)]
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('ess": "driver", "step": "a step of tomorrow"}\n')
    assert read(tmp_path) == [Event(3.0, DRIVER, Step.RAY)]
    assert read(tmp_path / "missing") == []


def test_the_watch_prints_each_step_once_and_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(start_timeline, "_now", lambda: now[0])
    beginning, lines = Beginning(100.0), []
    beginning.mark(DRIVER, Step.LOADED)
    watch = StartWatch(tmp_path, lines.append, beginning, quiet_seconds=30.0)
    assert lines == ["start       0.0 s  driver: program loaded (0.0 s)"], "at once, before the run has a folder"
    beginning.mark(DRIVER, Step.RAY)
    watch.tell()
    beginning.write(tmp_path)
    now[0] += 20.0
    mark(tmp_path, MANAGER, Step.LOADED)
    mark(tmp_path, POLICY, Step.STARTED)
    assert not watch.look()
    assert len(lines) == 4
    now[0] += 29.0
    assert not watch.look()
    assert len(lines) == 4
    now[0] += 1.0
    watch.look()
    watch.look()
    assert lines[4:] == [
        f"start    nothing new for 30 s; it waits for {POLICY}: server imported (last: process started, at 20 s). "
        f"See logs/{POLICY}.log"
    ]
    mark(tmp_path, DRIVER, Step.READY_TO_STEP)
    assert watch.look()
    watch.close()


def test_the_thread_ends_when_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_timeline, "LOOK_SECONDS", 0.001)
    lines: list[str] = []
    beginning = Beginning.read({})
    watch = StartWatch(tmp_path, lines.append, beginning)
    watch.start()
    beginning.write(tmp_path)
    mark(tmp_path, MANAGER, Step.LOADED)
    watch.close()
    assert len(lines) == 1
    assert not watch._thread.is_alive()


# The servers' part


@pytest.mark.parametrize("engine", [SGLangEngine, VLLMEngine])
def test_a_real_log_gives_its_steps_in_order(engine: type[SGLangEngine], repository: Path, tmp_path: Path) -> None:
    name = "vllm" if engine is VLLMEngine else "sglang"
    text = (repository / f"tests/data/{name}/start_cpu.txt").read_bytes()
    log = tmp_path / "engine.log"
    log.write_bytes(text)  # of an earlier start
    startup = Startup(log, None, engine.start_lines)
    assert list(startup.steps()) == []
    steps = []
    with log.open("ab") as file:
        for position in range(0, len(text), 100):  # lines arrive in pieces
            file.write(text[position : position + 100])
            file.flush()
            steps += startup.steps()
    assert steps == [Step.IMPORTED, Step.WEIGHTS, Step.CACHE]
    assert steps == [step for step in STEPS["engine"] if step in steps]


def test_a_log_that_cannot_be_read_gives_no_steps(tmp_path: Path) -> None:
    assert list(Startup(tmp_path, None).steps()) == []  # a folder
    assert list(Startup(tmp_path / "none", None).steps()) == []


def test_lines_of_a_gpu_as_sglang_formats_them() -> None:
    lines = (
        b"[2026-11-27 10:00:00] Capture target prefill CUDA graph begin. backend=full, num_tokens=[4, 8], avail mem=60.11 GB\n",
        b"[2026-11-27 10:00:09] Capture target prefill CUDA graph end. elapsed=9.00 s, mem usage=0.31 GB, avail mem=59.80 GB.\n",
        b"[2026-11-27 10:00:12] Capture target decode CUDA graph end. bs=[1, 2], elapsed=3.00 s, mem usage=0.10 GB, avail mem=59 GB.\n",
    )
    found = [[step for step, pattern in LINES.items() if pattern.search(line)] for line in lines]
    assert found == [[], [Step.PREFILL_GRAPHS], [Step.GRAPHS]]


def test_the_installed_sglang_still_words_its_lines_so() -> None:
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("SGLang is not installed")
    folder = Path(spec.submodule_search_locations[0]) / "srt"
    texts = {
        "model_executor/model_runner.py": ('f"Load weight end. "',),
        "mem_cache/kv_cache_configurator.py": ('f"Memory pool end. "',),
        "model_executor/model_runner_components/cuda_graph_setup.py": (
            'f"Capture {capture_name} CUDA graph end. "',
            'f"Capture {capture_name} {graph_backend[model_runner.device]} end. "',
            'capture_name = f"{role} prefill"',
            'capture_name = f"{role} decode"',
        ),
    }
    missing = [
        (file, text) for file, words in texts.items() for text in words if text not in (folder / file).read_text()
    ]
    assert not missing
    starts = [path.read_text() for path in (folder / "entrypoints/engine.py", folder / "entrypoints/http_server.py")]
    assert any(re.search(r"server_args=", text) or "{server_args=}" in text for text in starts)


def test_compilers_of_the_server_are_told_when_they_run_and_when_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slime.backends.sglang_utils.startup_log.LOOK_SECONDS", 0.0)
    program = tmp_path / "ninja"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    compiler = subprocess.Popen([program, "60"], start_new_session=True)
    try:
        startup = Startup(tmp_path / "engine.log", compiler.pid)
        deadline = time.monotonic() + 20.0
        while not (steps := list(startup.steps())) and time.monotonic() < deadline:
            continue  # the child has not become `ninja` yet
        assert steps == [Step.COMPILING]
        assert list(startup.steps()) == []
    finally:
        os.killpg(compiler.pid, signal.SIGKILL)
        compiler.wait()
    assert list(startup.steps()) == [Step.COMPILED]
