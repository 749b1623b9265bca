"""A runtime process that gives no answer is noticed, named and restarted; a slow one is left alone."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from groundwork.network import find_available_port
from groundwork.process import ChildProcess, spawn
from lab.testkit.waiting import wait_until
from openclaw.runtime.process import MIN_MISSES, RuntimeSupervisor, Silence, responds

SERVER = Path(__file__).parents[2] / "helpers" / "freezing_server.py"


@contextmanager
def supervised(
    tmp_path: Path, frozen_seconds: float, slow: float = 0.0
) -> Iterator[tuple[RuntimeSupervisor, str, list[ChildProcess]]]:
    """A supervisor of real processes that serve."""
    port, requests, log = find_available_port(), tmp_path / "ledger.requests", tmp_path / "runtime.log"
    children: list[ChildProcess] = []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}

    def start() -> ChildProcess:
        command = [sys.executable, SERVER, str(port), requests, str(slow)]
        children.append(spawn(command, env=environment, log_path=log, name="runtime"))
        return children[-1]

    url = f"http://127.0.0.1:{port}"
    supervisor = RuntimeSupervisor(
        start,
        health_url=f"{url}/healthz",
        log_path=log,
        ready=lambda url: responds(url, 30.0),
        poll_seconds=0.01,
        frozen_seconds=frozen_seconds,
        requests_path=requests,
    )
    try:
        supervisor.start()
        yield supervisor, url, children
    finally:
        supervisor.stop()


def occupy(url: str, child: ChildProcess) -> None:
    with suppress(URLError, TimeoutError):
        urlopen(f"{url}/freeze", timeout=0.5)


def halt(url: str, child: ChildProcess) -> None:
    os.kill(child.pid, signal.SIGSTOP)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("freeze", "word"), [(occupy, "in freeze"), (halt, "stopped by a signal")])
def test_a_frozen_process_is_restarted_and_its_requests_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, freeze: Callable[[str, ChildProcess], None], word: str
) -> None:
    with caplog.at_level(logging.WARNING), supervised(tmp_path, frozen_seconds=2.0) as (supervisor, url, children):
        freeze(url, children[0])
        wait_until(lambda: len(children) == 2 and supervisor._serving.is_set(), lambda: caplog.text, 120)
        assert (supervisor.restarts, supervisor.frozen) == (1, 1)
        assert responds(url, 30.0)
    (warning, error) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "frozen: it has given no answer for" in warning.getMessage()
    message = error.getMessage()
    assert "requests under way (1): request=req-frozen key=laptop POST /v1/chat/completions for " in message
    assert "req-finished" not in message
    assert word in message


def test_the_requests_of_a_process_that_died_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), supervised(tmp_path, frozen_seconds=60.0) as (supervisor, _, children):
        children[0].kill()
        wait_until(lambda: len(children) == 2, lambda: caplog.text, 120)
        assert (supervisor.restarts, supervisor.frozen) == (1, 0)
    assert "process ended; restarting it" in caplog.text
    assert "request=req-frozen key=laptop" in caplog.text


def test_a_slow_process_is_left_alone(tmp_path: Path) -> None:
    """It answers each look after a while, which is less than a look waits."""
    with supervised(tmp_path, frozen_seconds=60.0, slow=0.5) as (supervisor, url, children):
        silence = Silence(60.0)
        assert not any(silence.look(lambda: responds(url, silence.patience)) for _ in range(MIN_MISSES + 1))
        assert silence.seconds == 0.0
        assert (len(children), supervisor.restarts) == (1, 0)


def test_a_refusal_is_an_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = "http://{}:{}/healthz".format(*server.getsockname())

        def refuse() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        assert responds(url, 30.0)
        thread.join()
    assert not responds(url, 1.0)


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def looks(silence: Silence, clock: Clock, *gaps: float, answers: bool = False) -> list[bool]:
    found = []
    for gap in gaps:
        clock.now += gap
        found.append(silence.look(lambda: answers))
    return found


def test_silence_counts_over_the_whole_bound_and_several_misses() -> None:
    clock = Clock()
    silence = Silence(20.0, clock)
    assert not silence.due
    clock.now += 2.0
    assert silence.due
    assert looks(silence, clock, 5.0, 7.0) == [False, False]
    assert looks(silence, clock, 7.0) == [True]
    assert looks(silence, clock, 2.0, answers=True) == [False]
    assert looks(silence, clock, *[0.1] * 50) == [False] * 50, "refused connections come at once"


def test_a_watcher_that_stood_still_starts_anew() -> None:
    clock = Clock()
    silence = Silence(20.0, clock)
    assert looks(silence, clock, 7.0, 7.0, 3600.0, 7.0, 7.0) == [False] * 5
    assert looks(silence, clock, 7.0) == [True]
    silence = Silence(20.0, clock)
    assert looks(silence, clock, 13.0, 13.0) == [False] * 2, "a look counts for what it was meant to take"
