"""A spawned group ends with its parent, by order and by accident."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groundwork import process

CHILD = """
import signal, subprocess, sys, time
from groundwork.process import watch_lifeline
watch_lifeline()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('grandchild', flush=True); signal.pause()"
subprocess.Popen([sys.executable, "-c", code])
print("ready", flush=True)
time.sleep(600)
"""

PARENT = """
import sys, time
from pathlib import Path
from groundwork.process import spawn
child = spawn([sys.executable, "-c", sys.argv[1]], log_path=Path(sys.argv[2]), name="child")
print(child.pid, flush=True)
time.sleep(600)
"""


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def environment(repository: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(repository / "slime")}


def started(log: Path) -> bool:
    return log.exists() and {"ready", "grandchild"} <= set(log.read_text().split())


def test_killing_the_parent_ends_a_group_that_ignores_sigterm(repository: Path, tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    command = [sys.executable, "-c", PARENT, CHILD, str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(repository)) as parent:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        assert eventually(lambda: started(log))
        assert process.group_alive(group)
        parent.kill()
    assert eventually(lambda: not process.group_alive(group))


def test_stop_ends_the_group_and_reports_the_status(repository: Path, tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    child = process.spawn([sys.executable, "-c", CHILD], env=environment(repository), log_path=log, name="child")
    assert eventually(lambda: started(log))
    assert child.stop(timeout=0.2) == -signal.SIGKILL
    assert not child.alive()
    assert eventually(lambda: not process.group_alive(child.pid))


def test_a_child_that_ends_alone_is_noticed_and_its_log_is_shown(tmp_path: Path) -> None:
    child = process.spawn([sys.executable, "-c", "print('boom'); raise SystemExit(3)"], log_path=tmp_path / "a.log")
    assert child.wait(20) == 3
    assert not child.alive()
    assert "boom" in child.log_tail()
    assert child.stop() == 3


def test_a_group_that_outlives_its_end_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    child = process.spawn([sys.executable, "-c", ""], log_path=tmp_path / "a.log", name="the engine")
    assert child.wait(20) == 0
    monkeypatch.setattr(process, "group_alive", lambda group: True)
    monkeypatch.setattr(process, "KILLED_SECONDS", 0.0)
    assert child.kill() == 0
    assert f"a process of the engine (group {child.pid}) still exists" in caplog.text


def test_an_unknown_program_leaves_no_descriptor(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        process.spawn([tmp_path / "nothing"])
    assert set(os.listdir("/proc/self/fd")) <= before, (
        "those that a collection of garbage closes meanwhile do not count"
    )


def test_watch_lifeline_is_a_no_op_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(process.LIFELINE_VARIABLE, raising=False)
    process.watch_lifeline()


def test_stop_request_is_remembered_and_the_second_signal_interrupts(capfd: pytest.CaptureFixture[str]) -> None:
    previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    stop = process.StopRequested()
    try:
        stop.install()
        assert not stop
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(5)
        assert stop.exit_code == 130
        assert capfd.readouterr().err == "stopping; a second signal ends this at once\n"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def test_an_interrupt_before_signals_are_handled_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    assert process.run_main(interrupted) == 130
    assert capsys.readouterr().err == "stopped\n"
    assert process.run_main(lambda: 3) == 3


def test_a_table_entry_that_cannot_be_read_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel may hide other users' processes, and a program may have any bytes as its name."""
    own = b"7 (caf\xe9) S 1 5 5"
    for number, stat in {"7": own, "8": b"", "9": b"9 (other) S 1 6 6"}.items():
        (tmp_path / number).mkdir()
        (tmp_path / number / "stat").write_bytes(stat)
    read_text = Path.read_text

    def read(path: Path, *arguments: Any, **keywords: Any) -> str:
        if path.parent.name == "8":
            raise PermissionError(path)
        return read_text(path, *arguments, **keywords)

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(process, "Path", lambda name: tmp_path if name == "/proc" else Path(name))
    assert process.group_programs(5) == {"caf\ufffd"}
