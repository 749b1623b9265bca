"""Alerts: what is sent, that nothing waits for it, that attempts are bounded, and that the address stays secret."""

from __future__ import annotations

import http.server
import json
import logging
import shutil
import socket
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from groundwork.exceptions import ConfigError
from groundwork.paused import pause
from lab.testkit.waiting import wait_until
from openclaw.config.runtime import RuntimeConfig
from slime.utils import alerts
from slime.utils.alerts import VARIABLE, Alerts, alerting, tell

SECRET = "T0KEN-of-the-hook"


class Hook:
    """A webhook that answers with ``statuses`` in turn, then 200; ``slow``: it waits for ``release`` first."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        self.location = ""
        self.release = threading.Event()
        self.release.set()
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.release.wait(10)
                hook.heard.append(json.loads(body))
                self.send_response(hook.statuses.pop(0) if hook.statuses else 200)
                if hook.location:
                    self.send_header("Location", hook.location)
                self.end_headers()

            def log_message(self, *words: object) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/{SECRET}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    monkeypatch.setattr(alerts, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(alerts, "PAUSE_SECONDS", 0.01)
    hook = Hook()
    yield hook
    hook.close()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


def heard(hook: Hook, count: int = 1) -> list[dict[str, Any]]:
    wait_until(lambda: len(hook.heard) >= count, lambda: f"{len(hook.heard)} of {count}", 20)
    return hook.heard


def test_a_line_is_sent_in_the_forms_that_services_read(hook: Hook, run: Path) -> None:
    with alerting(run, environment={VARIABLE: hook.url}):
        tell("refused", "the gate refused the update of step 3")
    text = "mine: the gate refused the update of step 3"
    assert hook.heard == [{"text": text, "content": text, "kind": "refused", "run": "mine"}], "the end waits for it"


def test_without_the_variable_nothing_happens(run: Path) -> None:
    threads = threading.active_count()
    with alerting(run, environment={}):
        tell("refused", "a line")
        assert threading.active_count() == threads
    tell("refused", "after a run")


def test_a_pause_is_told_once_and_without_a_name(hook: Hook, run: Path) -> None:
    pause(run, 1, "of before the start")
    with alerting(run, environment={VARIABLE: hook.url}):
        pause(run, 4, "train/ppo_kl 0.7 > 0.5")
        pause(run, 5, "the gate refused 3 batches in a row", "alice")
        heard(hook, 2)
        time.sleep(0.1)  # several looks
    assert sorted(each["text"] for each in hook.heard) == [
        "mine: training is paused since step 4: train/ppo_kl 0.7 > 0.5",
        "mine: training of one person is paused since step 5: the gate refused 3 batches in a row",
    ]
    assert {each["kind"] for each in hook.heard} == {"fuse"}


def test_a_pause_right_before_the_end_is_told(hook: Hook, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "LOOK_SECONDS", 60.0)
    with alerting(run, environment={VARIABLE: hook.url}):
        time.sleep(0.05)  # the first look is over
        pause(run, 4, "why")
    assert [each["kind"] for each in hook.heard] == ["fuse"]


def test_a_shortage_is_told_once_until_there_is_room(hook: Hook, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    free = [100]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(100 * 2**30, 0, free[0] * 2**30))
    with alerting(run, environment={VARIABLE: hook.url}):
        for room, count in ((1, 1), (2, 1), (1, 1), (50, 1), (0, 2)):
            free[0] = room
            time.sleep(0.1)
            heard(hook, count)
            assert len(hook.heard) == count
    assert hook.heard[0]["text"] == "mine: the disk is nearly full: 1.0 of 100 GiB are free"
    assert hook.heard[0]["kind"] == "disk"


def test_a_failing_hook_is_asked_three_times_at_most(hook: Hook, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    hook.statuses = [500, 503, 200, 500, 500, 500, 404]
    with alerting(run, environment={VARIABLE: hook.url}):
        for line in ("arrives", "fails", "refused"):
            tell("engine", line)
    assert [each["text"].split()[-1] for each in hook.heard] == ["arrives"] * 3 + ["fails"] * 3 + ["refused"]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [f"an alert (engine) reached nobody: HTTP {status}" for status in (500, 404)]
    assert SECRET not in caplog.text


def test_a_hook_that_is_away_or_hangs_holds_nobody_up(
    hook: Hook, run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(alerts, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(alerts, "END_SECONDS", 1.0)
    hook.release.clear()
    began = time.monotonic()
    with alerting(run, environment={VARIABLE: hook.url}):
        for number in range(200):
            tell("engine", f"line {number}")
        assert time.monotonic() - began < 1.0
    assert time.monotonic() - began < 5.0, "the end of a run waits for a bounded time"
    assert "is dropped, because 64 wait" in caplog.text
    assert SECRET not in caplog.text
    hook.close()
    with alerting(run, environment={VARIABLE: hook.url}):
        tell("engine", "nobody listens")
    assert "reached nobody: URLError" in caplog.text
    assert SECRET not in caplog.text


def test_what_speaks_no_http_ends_no_thread(hook: Hook, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            for _ in range(3):
                with server.accept()[0] as connection:
                    connection.recv(65536)
                    connection.sendall(b"SSH-2.0-x\r\n")

        threading.Thread(target=answer, daemon=True).start()
        mine = Alerts(f"http://127.0.0.1:{server.getsockname()[1]}/{SECRET}", run, [])
        mine.start()
        mine.tell("engine", "a line")
        wait_until(lambda: "BadStatusLine" in caplog.text, lambda: caplog.text, 20)
        assert mine._thread.is_alive()
        mine.close()
    assert SECRET not in caplog.text


def test_a_redirection_is_not_followed(hook: Hook, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    visited: list[str] = []

    class Inside(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            visited.append(self.path)
            self.send_response(200)
            self.end_headers()

    with http.server.HTTPServer(("127.0.0.1", 0), Inside) as inside:
        threading.Thread(target=inside.serve_forever, daemon=True).start()
        hook.location = f"http://127.0.0.1:{inside.server_port}/inside"
        hook.statuses = [302, 307]
        with alerting(run, environment={VARIABLE: hook.url}):
            tell("engine", "one")
            tell("engine", "two")
        inside.shutdown()
    assert (visited, len(hook.heard)) == ([], 2)
    assert "reached nobody: HTTP 302" in caplog.text


def test_notes_that_cannot_be_read_end_no_thread(hook: Hook, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with alerting(run, environment={VARIABLE: hook.url}):

        def unreadable(run_dir: Path) -> None:
            raise PermissionError(13, "Permission denied", str(run_dir))

        monkeypatch.setattr(alerts, "paused", unreadable)
        time.sleep(0.1)  # several looks
        tell("engine", "a line")
        heard(hook)


NO_ADDRESSES = pytest.mark.parametrize(
    "url",
    [
        "hooks.example/T0KEN-of-the-hook",
        "ftp://x/T0KEN-of-the-hook",
        "http:///T0KEN",
        "http://x:port/T0KEN",
        "http://x/T0KEN of",
        "http://[x/T0KEN",
        "http://name:T0KEN@x/",
        "http://x/T0KEN\n",
        "http://x/T0KEN-é",
    ],
)


@NO_ADDRESSES
def test_what_is_no_address_is_refused_without_showing_it(url: str, run: Path) -> None:
    with pytest.raises(ConfigError, match=f"{VARIABLE} is no HTTP address") as refused:
        Alerts(url, run, [])
    assert "T0KEN" not in str(refused.value)
    assert alerts._alerts is None


@NO_ADDRESSES
def test_the_plan_refuses_it_too(url: str) -> None:
    with pytest.raises(ConfigError, match="no HTTP address") as refused:
        RuntimeConfig.from_env({VARIABLE: url})
    assert "T0KEN" not in str(refused.value)


def test_the_plan_hides_it() -> None:
    declared = RuntimeConfig.declared("alert_webhook")
    assert (declared.name, declared.secret) == (VARIABLE, True)
    shown = RuntimeConfig.from_env({VARIABLE: f"https://hooks.example/{SECRET}"}).describe()
    assert SECRET not in str(shown)
