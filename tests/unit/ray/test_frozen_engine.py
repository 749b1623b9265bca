"""An engine whose processes a signal has stopped is noticed from outside, and restarted with the reason in the log."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from groundwork.process import ChildProcess, group_alive, group_stopped, spawn
from lab.testkit.waiting import wait_until
from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.backends.sglang_utils import engine as engine_module
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.backends.sglang_utils.engine_process import EngineProcess

SCHEDULER = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"


def members(group: int) -> list[int]:
    """The processes of a group, its leader first."""
    found = subprocess.run(["ps", "-e", "-o", "pid=,pgid="], capture_output=True, text=True, check=True).stdout
    return sorted(int(line.split()[0]) for line in found.splitlines() if int(line.split()[1]) == group)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SGLangEngine]:
    """An engine with a real server process and a real worker behind it."""

    def launch(process: EngineProcess, port: int = 0, **options: object) -> None:
        process.child = spawn([sys.executable, "-c", SCHEDULER], name="policy-0")
        wait_until(lambda: len(members(process.child.pid)) == 2, lambda: "no worker")  # pyright: ignore

    monkeypatch.setattr(EngineProcess, "launch", launch)
    monkeypatch.setattr(SGLangEngine, "health", lambda engine: True)
    arguments = Arguments(run_dir=str(tmp_path), device="cpu", rollout_health_check_timeout=30.0)
    engine = SGLangEngine(arguments, EngineSpec("policy", 0, 1, ()))
    engine.start()
    yield engine
    engine.kill()


def child(engine: SGLangEngine) -> ChildProcess:
    assert engine.process.child is not None
    return engine.process.child


@pytest.mark.parametrize("which", [0, 1], ids=["server", "worker"])
def test_a_stopped_process_counts_as_silence(
    engine: SGLangEngine, which: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if the server still answers, because only the scheduler behind it is stopped."""
    now = time.monotonic()
    monkeypatch.setattr(engine_module.time, "monotonic", lambda: now)
    first = child(engine).pid
    assert not engine.is_dead()
    os.kill(members(first)[which], signal.SIGSTOP)
    wait_until(lambda: group_stopped(first), lambda: "not stopped")
    assert not engine.restart_if_dead()
    now += 30.0
    with caplog.at_level(logging.WARNING):
        assert engine.restart_if_dead()
    assert "has failed its health checks for 30 s, and a signal has stopped a process of it; restarting" in caplog.text
    assert child(engine).pid != first
    assert not group_alive(first)
    assert not engine.is_dead()


def test_a_stop_that_ends_in_time_restarts_nothing(engine: SGLangEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(engine_module.time, "monotonic", lambda: now)
    pid = child(engine).pid
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: group_stopped(pid), lambda: "not stopped")
    assert not engine.restart_if_dead()
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not group_stopped(pid), lambda: "still stopped")
    now += 60.0
    assert not engine.restart_if_dead()
    assert child(engine).pid == pid
