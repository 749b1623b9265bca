"""The chat in this process, typed to by a generator, before a real gateway or a server of scripted answers."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from openclaw.chat.__main__ import main
from tests.helpers.stand_in_server import StandInServer, stand_in_server
from tests.helpers.threaded_server import running_server

DEADLINE_SECONDS = 30.0
Typed = Callable[["Chat"], Iterator[str]]


class Chat(io.TextIOBase):
    """Standard input of one chat, and what it has written so far."""

    def __init__(self, typed: Typed) -> None:
        self.out = io.StringIO()
        self._lines = typed(self)

    @property
    def text(self) -> str:
        """Everything that was written."""
        return self.out.getvalue()

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        """Return the next line that the test types."""
        return next((f"{line}\n" for line in self._lines), "")

    def until(self, text: str) -> Iterator[str]:
        """Press the return key until ``text`` was written."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while text not in self.text:
            assert time.monotonic() < deadline, f"no {text!r} in {self.text!r}"
            time.sleep(0.005)
            yield ""


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """A function that chats with a URL, typed to by lines or a generator function; returns exit status and output."""

    def run(url: str, typed: Typed | list[str], *options: str) -> tuple[int, str]:
        chat = Chat(typed if callable(typed) else lambda _: iter(typed))
        monkeypatch.setattr(sys, "stdin", chat)
        monkeypatch.setattr(sys, "stdout", chat.out)
        return main(["--base-url", url, *options]), chat.text

    return run


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInServer]:
    """A gateway whose model says ``So **be** it.``"""
    with stand_in_server(tmp_path_factory.mktemp("gateway"), lambda _: "So **be** it.") as server:
        yield server


class Scripted(ThreadingHTTPServer):
    """A server whose answers to chat completions the test decides: a status and a body, or bytes of a stream."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, bytes]] = []
        self.asked: list[dict[str, Any]] = []
        self.silence: threading.Event | None = None
        self.models: tuple[int, bytes] = (200, b'{"data": [{"id": "m"}]}')
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def say(self, *events: Any, cut: bool = False) -> None:
        """Answer the next chat completion with a stream; ``cut`` leaves out its end."""
        lines = b"".join(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n" for event in events)
        self.answers.append((200, lines + (b"" if cut else b"data: [DONE]\n\n")))


class _Handler(BaseHTTPRequestHandler):
    server: Scripted  # pyright: ignore[reportIncompatibleVariableOverride]

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._answer(*(self.server.models if self.path == "/v1/models" else (404, b"not here")))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path != "/v1/chat/completions":
            self._answer(404, b"not here")
            return
        self.server.asked.append(json.loads(body))
        status, said = self.server.answers.pop(0)
        if self.server.silence is not None:
            self.server.silence.wait(DEADLINE_SECONDS)
        with contextlib.suppress(ConnectionError):  # a client that has left
            self._answer(status, said)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log."""


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    """A server of scripted answers."""
    server = Scripted()
    with running_server(server):
        yield server
