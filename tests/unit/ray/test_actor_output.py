"""The terminal shows warnings of the run's other processes; their log has every line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray._private.ray_logging import global_worker_stdstream_dispatcher

from slime.ray.cluster import ActorOutput, take_over

MANAGER = "2026-11-22 10:00:00,123 openclaw.training.rollout"


def batch(*lines: str, pid: Any = 7, actor: str | None = "RolloutManager") -> dict[str, Any]:
    return {"pid": pid, "actor_name": actor, "task_name": None, "lines": list(lines), "is_err": True, "ip": "10.0.0.1"}


def test_only_warnings_reach_the_terminal_and_all_lines_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ActorOutput(tmp_path / "logs" / "processes.log")
    output(batch(f"{MANAGER} INFO ledger: rollout None restored", f"{MANAGER} WARNING the judge does not answer"))
    output(batch("[rank 1] INFO slime.x: weights 3 are live, 0.1 s", "[rank 1] ERROR slime.x: no memory", pid=8))
    output(batch("Traceback (most recent call last):", "OSError: no", pid=8))
    output(batch("[engine-0] WARNING slime.y: the server is slow", "[rank 0] INFO slime.x: next", pid=9))
    output(batch("a progress bar", pid=9))
    assert capsys.readouterr().err.splitlines() == [
        "warning: the judge does not answer",
        "[rank 1] error: no memory",
        "Traceback (most recent call last):",
        "OSError: no",
        "[engine-0] warning: the server is slow",
    ]
    logged = (tmp_path / "logs" / "processes.log").read_text().splitlines()
    assert len(logged) == 9
    assert logged[0] == f"RolloutManager 7: {MANAGER} INFO ledger: rollout None restored"


def test_a_repeated_warning_is_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = ActorOutput(tmp_path / "processes.log")
    for pid in (1, 2):
        output(batch("[rank 0] WARNING slime.x: slow", pid=pid))
    assert capsys.readouterr().err == "warning: slow\n"


def test_what_ray_itself_says_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ActorOutput(tmp_path / "processes.log")(batch("a worker died of memory pressure", pid="raylet", actor=None))
    assert capsys.readouterr().err == "ray: a worker died of memory pressure\n"


def test_it_takes_the_place_of_rays_own_printing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[Any] = []
    monkeypatch.setattr(global_worker_stdstream_dispatcher, "handlers", [("ray_print_logs", printed.append)])
    take_over(tmp_path)
    global_worker_stdstream_dispatcher.emit(batch("hello"))
    assert printed == []
    assert (tmp_path / "logs" / "processes.log").read_text() == "RolloutManager 7: hello\n"
    assert [name for name, _ in global_worker_stdstream_dispatcher.handlers] == ["ray_print_logs"]
