"""The chat as a program in a terminal of its own: the prompt, Ctrl-C and Ctrl-D, and news above an empty prompt."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil
import pytest

from lab.testkit.waiting import wait_until
from openclaw.credit.baseline import record_judged
from openclaw.ledger.records import Verdict
from tests.helpers.stand_in_server import StandInServer

DEADLINE_SECONDS = 60.0
CTRL_C, CTRL_D, UP, ENTER = "\x03", "\x04", "\x1b[A", "\r"


class Terminal:
    """The other end of a program's terminal."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self._master = master
        self._unseen = ""

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def until(self, text: str) -> str:
        """Wait for ``text``; return what was written up to its end."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while text not in self._unseen:
            ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {text!r} in {self._unseen!r}"
            self._unseen += os.read(self._master, 4096).decode()
        seen, _, self._unseen = self._unseen.partition(text)
        return seen + text

    def prompt(self) -> None:
        """Wait until the program waits at its prompt; a Ctrl-C in between would be noticed at the next key only."""
        self.until("you> ")
        program = psutil.Process(self.process.pid)
        wait_until(lambda: program.status() == psutil.STATUS_SLEEPING, program.status, DEADLINE_SECONDS)


OpenTerminal = Callable[[], AbstractContextManager[Terminal]]


@pytest.fixture
def terminal(gateway: StandInServer, repository: Path) -> OpenTerminal:
    """A context with the chat in a terminal, at its first prompt."""

    @contextmanager
    def started() -> Iterator[Terminal]:
        master, slave = pty.openpty()
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONSTARTUP"}
        process = subprocess.Popen(
            [sys.executable, "-m", "openclaw", "chat", "--base-url", gateway.url],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=repository,
            env={**environment, "TERM": "xterm", "INPUTRC": "/dev/null"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),  # its keys send signals
        )
        os.close(slave)
        try:
            chat = Terminal(process, master)
            chat.prompt()
            yield chat
        finally:
            process.kill()
            process.wait()
            os.close(master)

    return started


def test_keys_at_the_prompt(gateway: StandInServer, terminal: OpenTerminal) -> None:
    with terminal() as chat:
        chat.type(f"Hello?{ENTER}")
        chat.until("So **be** it.")
        chat.prompt()
        chat.type(f"{UP}{ENTER}")
        chat.until("So **be** it.")
        chat.prompt()
        assert [turn.messages[-1]["content"] for turn in gateway.turns()[-2:]] == ["Hello?", "Hello?"]
        chat.type(CTRL_C)
        chat.until("type /quit, or press Ctrl-C again to quit")
        chat.prompt()
        chat.type(f"/down{ENTER}")
        chat.until("noted: thumbs down")
        chat.prompt()
        chat.type(CTRL_C)
        chat.prompt()
        chat.type(CTRL_C)
        assert chat.process.wait(DEADLINE_SECONDS) == 0
    assert gateway.ledger.feedback.of(gateway.turns()[-1].id)[0].thumbs == "down"


def test_ctrl_d_ends_the_session(gateway: StandInServer, terminal: OpenTerminal) -> None:
    with terminal() as chat:
        chat.type(f"Hello?{ENTER}")
        chat.until("weights 1")
        chat.prompt()
        chat.type(CTRL_D)
        assert chat.process.wait(DEADLINE_SECONDS) == 0
    assert gateway.turns()[-1].state == "ended"


def test_ctrl_c_stops_a_reply_and_the_chat_goes_on(gateway: StandInServer, terminal: OpenTerminal) -> None:
    gateway.engine.token_gate = asyncio.Semaphore(2)
    try:
        with terminal() as chat:
            chat.type(f"Hello?{ENTER}")
            chat.until("So")
            chat.type(CTRL_C)
            chat.until("stopped; the model forgets this message and its reply")
            chat.prompt()
            wait_until(lambda: gateway.turns()[-1].finish_reason == "abort", lambda: "the engine goes on", 60)
            gateway.engine.token_gate = None
            chat.type(f"Again?{ENTER}")
            chat.until("So **be** it.")
    finally:
        gateway.engine.token_gate = None
    assert [message["content"] for message in gateway.chats()[-1].body["messages"]] == ["Again?"]


def test_news_appear_above_an_empty_prompt(gateway: StandInServer, terminal: OpenTerminal) -> None:
    with terminal() as chat:
        for text in ("One.", "Two."):
            chat.type(f"{text}{ENTER}")
            chat.until("weights 1")
            chat.prompt()
        turn = gateway.turns()[-2]
        record_judged(gateway.ledger, turn.id, Verdict(score=0), [], "score_zero")
        chat.until('judged: 0 (nothing to learn from "Two.": score_zero)')
        chat.prompt()
        chat.type(f"/quit{ENTER}")
        assert chat.process.wait(DEADLINE_SECONDS) == 0
