"""The served engine is started again when it hangs, and a look that finds it silent once ends nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from openclaw.server import run
from openclaw.server.options import ServerOptions
from slime.backends.sglang_utils import engine as engine_module
from slime.backends.sglang_utils.engine import SGLangEngine


class Child:
    """A process that runs and never answers."""

    pid = -1
    returncode = None
    killed = False

    def alive(self) -> bool:
        return not self.killed

    def kill(self) -> None:
        self.killed = True

    def stop(self, timeout: float) -> None:
        self.killed = True


def test_a_silent_engine_is_given_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Child] = []
    now = 1000.0

    def start(engine: SGLangEngine, hold: bool = False) -> str:
        started.append(Child())
        engine.process.child = started[-1]  # pyright: ignore[reportAttributeAccessIssue]
        return ""

    monkeypatch.setattr(engine_module.time, "monotonic", lambda: now)
    monkeypatch.setattr(SGLangEngine, "start", start)
    monkeypatch.setattr(SGLangEngine, "health", lambda engine: False)
    options = ServerOptions("model", None, "cpu", (), None, 60.0, {})
    with run.running_engine(options, tmp_path, 2048) as engine:
        assert engine.restart_if_dead() is False
        now += run.HANG_SECONDS
        assert engine.restart_if_dead() is True
        assert [child.killed for child in started] == [True, False]
    assert started[-1].killed
