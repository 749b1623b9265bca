"""Who watches the runtime process says what is wrong, whatever answers on its port, instead of waiting for ever."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from groundwork.exceptions import ConfigError
from openclaw.runtime import start
from openclaw.runtime.process import RuntimeFailedError, RuntimeSupervisor, answers
from slime.args import Arguments


def refuse(*_: Any) -> Any:
    raise PermissionError("not allowed")


@pytest.mark.timeout(60)
def test_a_process_that_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    supervisor = RuntimeSupervisor(refuse, health_url="http://none", log_path=tmp_path / "log", poll_seconds=0.005)
    with pytest.raises(RuntimeFailedError, match="not allowed"):
        supervisor.start()
    supervisor.stop()


@pytest.mark.timeout(60)
def test_a_process_that_cannot_be_asked_is_ended(tmp_path: Path) -> None:
    ended: list[float] = []
    child = SimpleNamespace(alive=lambda: True, stop=ended.append)
    supervisor = RuntimeSupervisor(
        lambda: child, health_url="http://none", log_path=tmp_path / "log", ready=refuse, poll_seconds=0.005
    )
    with pytest.raises(RuntimeFailedError, match="not allowed"):
        supervisor.start()
    assert len(ended) == 1


def test_a_health_check_does_not_go_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also, what answers with something else than HTTP does not serve; nor does who says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = "http://{}:{}/healthz".format(*server.getsockname())
        server.settimeout(30)
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        found: list[bool] = []
        for answer in (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"SSH-2.0-x\r\n\r\n", b""):
            asking = threading.Thread(target=lambda: found.append(answers(url, timeout=30.0)))
            asking.start()
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)
            asking.join(30)
    assert found == [True, False, False]


def test_an_unusable_variable_of_the_method_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "runtime_environment", lambda *_: {"OPENCLAW_COMBINE_W_RL": "-1"})
    monkeypatch.setattr(start, "supervise", lambda *_: pytest.fail("a runtime was prepared"))
    with pytest.raises(ConfigError, match="OPENCLAW_COMBINE_W_RL=-1"):
        start.start_runtime(Arguments(), "openclaw_combine_method.Combine")


def test_a_method_that_cannot_work_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "runtime_environment", lambda *_: {})
    monkeypatch.setattr(start, "supervise", lambda *_: pytest.fail("a runtime was prepared"))
    with pytest.raises(ConfigError, match=r"builtins\.str is not a method; str lacks name"):
        start.start_runtime(Arguments(), "builtins.str")
