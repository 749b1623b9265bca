"""An external engine whose run is gone answers again, and never with weights that may be half new."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import psutil
import pytest

from lab.testkit.live_run import wait_until
from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.backends.sglang_utils.external import ExternalEngine
from slime.backends.sglang_utils.external_release import follow
from tests.helpers.threaded_server import Server, running_server

RUN = """
import sys
from slime.args import Arguments
from slime.backends.sglang_utils.external import ExternalEngine
from slime.backends.sglang_utils.server_args import EngineSpec
engine = ExternalEngine(Arguments(run_dir=sys.argv[2], device="cpu"), EngineSpec("policy", 0, 1), sys.argv[1])
engine.pause_generation()
print("held", flush=True)
sys.stdin.read()
"""
CLOSE = ("/end_weight_update", {})
CONTINUE = ("/continue_generation", {"torch_empty_cache": False})
READ_AGAIN = ("/update_weights_from_disk", {"model_path": "m", "flush_cache": True, "weight_version": "default"})
RELOAD = [CLOSE, ("/pause_generation", {"mode": "retract"}), ("/model_info", None), READ_AGAIN]
BEGIN = ("/begin_weight_update", {})


class Engine:
    """A server that keeps what it is asked for, and refuses some of it."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.refuses: dict[str, str] = {}
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def do_GET(self) -> None:
                self._answer(None)

            def _answer(self, body: Any) -> None:
                engine.heard.append((self.path, body))
                words = engine.refuses.get(self.path)
                self.send_response(400 if words and "{" not in words else 200)
                self.end_headers()
                self.wfile.write((json.dumps({"model_path": "m"}) if words is None else words).encode())

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.server = Server(Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    made = Engine()
    with running_server(made.server):
        yield made


def helpers_of(engine: Engine) -> list[psutil.Process]:
    """Those that wait for the end of the engine's run, out of reach of a signal by now."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(word.endswith("external_release.py") for word in words) and f"http://{engine.address}" in words:
            with contextlib.suppress(OSError):
                ignored = int(Path(f"/proc/{process.pid}/status").read_text().partition("SigIgn:")[2].split()[0], 16)
                if ignored >> (signal.SIGTERM - 1) & 1:
                    found.append(process)
    return found


@pytest.mark.parametrize(
    ("words", "refuses", "expected", "said"),
    [
        ("held", {}, [CLOSE, CONTINUE], "answers again, with the weights of the last update"),
        (
            "held loading",
            {},
            [*RELOAD, BEGIN, CLOSE, CONTINUE],
            "the weights of m: the lost run's update was incomplete",
        ),
        ("held loading", {"/begin_weight_update": "already open"}, [*RELOAD, BEGIN], "is with a new trainer"),
        ("held loading", {"/update_weights_from_disk": "no m"}, RELOAD, "restart it .*400 no m"),
        ("held loading", {"/model_info": ""}, RELOAD[:3], "restart it .*names no model_path"),
        ("held loading", {"/model_info": "{"}, RELOAD[:3], "restart it .*answered b'{'"),
        ("held loading loaded", {}, [CLOSE, CONTINUE], "answers again"),
        ("held loading held", {}, [*RELOAD, BEGIN, CLOSE, CONTINUE], "answers again"),
        ("held loading loaded free", {}, [], None),
        ("free held", {"/end_weight_update": "no weight-update session is open"}, [CLOSE, CONTINUE], "answers again"),
    ],
)
def test_what_becomes_of_an_engine(
    engine: Engine, words: str, refuses: dict[str, str], expected: list[Any], said: str | None
) -> None:
    engine.heard, engine.refuses = [], refuses
    found = follow(f"http://{engine.address}", [f"{word}\n" for word in words.split()])
    assert engine.heard == expected
    assert found is None if said is None else re.search(said, found or "")


def test_an_engine_that_is_gone_is_named(tmp_path: Path) -> None:
    assert "restart it (http://127.0.0.1:9/end_weight_update" in (follow("http://127.0.0.1:9", ["held\n"]) or "")


def test_the_run_tells_what_it_does(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int]] = []
    engine.heard, engine.refuses = [], {}
    made = ExternalEngine(Arguments(run_dir=str(tmp_path), device="cpu"), EngineSpec("policy", 0, 1), engine.address)
    monkeypatch.setattr(made, "_note", lambda word: told.append((word, len(engine.heard))))
    made.pause_generation()
    made.begin_weight_update()
    made.hold_after_failed_update()
    made.begin_weight_update()
    made.end_weight_update()
    made.continue_generation()
    # Before what makes the engine wait, after what lets it go on: the number is that of the calls so far.
    assert told == [("held", 0), ("loading", 1), ("held", 2), ("loading", 4), ("loaded", 6), ("free", 7)]


def test_the_requests_of_a_run_that_was_killed_go_on(engine: Engine, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", RUN, engine.address, str(tmp_path)]
    engine.heard, engine.refuses = [], {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "held\n"
        assert [path for path, _ in engine.heard] == ["/pause_generation"]
        wait_until(lambda: helpers_of(engine), lambda: "nobody waits for the run's end", 60)
        for helper in helpers_of(engine):
            helper.terminate()
        run.send_signal(signal.SIGKILL)
    log = tmp_path / "logs" / "engine-policy-0.log"
    wait_until(log.exists, lambda: f"not released: {engine.heard}", 60)
    assert engine.heard[1:] == [CLOSE, CONTINUE]
