"""A persistent shell on a terminal of its own; runs in the agent's sandbox, standard library only.

`agentrl.tasks.terminal.environment` runs this file with two arguments, a folder for its sockets and that of new shells, and a request
on stdin: a JSON object with ``id``, ``do`` (``exec``, ``view`` or ``write``), ``text``, ``wait_s`` and ``most``. It prints the answer, a JSON object with ``output``,
``cut``, ``running`` and ``status``, or ``error``. The first ``exec`` of an id starts a process that owns the shell and listens on
a socket; it ends with the shell.

Guarantees: the shell keeps folder, variables and functions between commands. What a command prints can neither end nor
forge its status, which comes over a pipe that commands do not have. Output is bounded: its head and its tail are kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import selectors
import signal
import socket
import struct
import sys
import termios
import time
from contextlib import suppress
from typing import Any

COMMANDS, REPORTS = 198, 199
"""Descriptors of the shell: its script, and the statuses of commands."""
FIRST = f"exec {COMMANDS}<&-; set -m; trap : INT\n"
LINES = f'source "$_command" {REPORTS}>&-\n_status=$?; printf %s MARK > /dev/tty; echo $_status >&{REPORTS}\n'
"""Of a command: what the shell reads. They are two lines, because an interrupted command ends its own."""
INTERRUPT = "^C"
QUIET_S = 0.5
"""After a line was written: the answer comes once nothing was printed for so long."""
MARK_S = 1.0
"""After a status: how long its mark in the output is waited for."""
CHUNK = 65_536


class Kept:
    """The head and the tail of what was printed since the last look."""

    def __init__(self, most: int) -> None:
        self.half = most // 2
        self.head, self.tail, self.cut = bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        """Take what was printed."""
        room = max(0, self.half - len(self.head)) if not self.tail else 0
        self.head += data[:room]
        self.tail += data[room:]
        if (over := len(self.tail) - 2 * self.half) > 0:
            self.cut += over
            del self.tail[:over]

    def take(self) -> tuple[str, int]:
        """Return it and the number of bytes left out, and begin anew."""
        if (over := len(self.tail) - self.half) > 0:
            self.cut += over
            del self.tail[:over]
        found = (self.head + self.tail).decode(errors="replace"), self.cut
        self.head, self.tail, self.cut = bytearray(), bytearray(), 0
        return found


class Session:
    """A shell, its terminal, and whoever waits for an answer."""

    def __init__(self, listening: socket.socket, name: str, cwd: str, most: int) -> None:
        self.name, self.listening = name, listening
        self.kept = Kept(most)
        self.command = os.path.abspath(f"{name}.sh")
        self.running, self.status, self.ended = False, None, False
        self.mark, self.reported_at = b"", 0.0
        self.waiting: socket.socket | None = None
        self.deadline = self.quiet_at = 0.0
        self._start(cwd)
        self.selector = selectors.DefaultSelector()
        self.selector.register(listening, selectors.EVENT_READ, self._accept)
        self.selector.register(self.terminal, selectors.EVENT_READ, self._printed)
        self.selector.register(self.reports, selectors.EVENT_READ, self._reported)

    def _start(self, cwd: str) -> None:
        self.terminal, shells = os.openpty()
        modes = termios.tcgetattr(shells)
        modes[1] &= ~termios.OPOST
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(shells, termios.TCSANOW, modes)
        fcntl.ioctl(shells, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        taken, self.commands = os.pipe()
        self.reports, reporting = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                # A shell keeps ignoring what it begins with ignored, and ^C would end nothing.
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                fcntl.ioctl(shells, termios.TIOCSCTTY, 0)
                for number in range(3):
                    os.dup2(shells, number)
                os.dup2(taken, COMMANDS)
                os.dup2(reporting, REPORTS)
                os.closerange(3, COMMANDS)
                os.chdir(cwd)
                plain = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "_command": self.command}
                os.execvpe("bash", ["bash", "--noprofile", "--norc", f"/dev/fd/{COMMANDS}"], {**os.environ, **plain})
            finally:
                os._exit(127)
        for item in (shells, taken, reporting):
            os.close(item)
        os.set_blocking(self.terminal, False)
        os.write(self.commands, FIRST.encode())

    def run(self) -> None:
        """Serve until the shell has ended and somebody was told."""
        while not self.ended or self.waiting is not None:
            moments = [self.deadline, self.quiet_at] if self.waiting is not None else []
            moments += [self.reported_at + MARK_S] if self.reported_at else []
            left = min((moment for moment in moments if moment), default=None)
            for key, _ in self.selector.select(None if left is None else max(0.0, left - time.monotonic())):
                if key.fd in self.selector.get_map():
                    key.data()
            now = time.monotonic()
            if self.reported_at and now >= self.reported_at + MARK_S:
                self._over()
            if self.waiting is not None and (
                not self.running or now >= self.deadline or (self.quiet_at and now >= self.quiet_at)
            ):
                self._answer(self._state())
        with suppress(OSError):
            os.unlink(self.name)

    def _accept(self) -> None:
        connection, _ = self.listening.accept()
        with connection.makefile("rb") as lines:
            request = json.loads(lines.readline())
        if self.waiting is not None:
            self._answer({"error": "another call of this session came"})
        self.waiting = connection
        self.deadline, self.quiet_at = time.monotonic() + request["wait_s"], 0.0
        if problem := self._do(request):
            self._answer({"error": problem, **self._state()})

    def _do(self, request: dict[str, Any]) -> str:
        """Do what is asked; return why it cannot be done, or nothing."""
        if request["do"] == "exec":
            if self.running:
                return "busy"
            with open(self.command, "w") as file:
                file.write(request["text"] + "\n")
            mark = secrets.token_hex(16)
            self.mark, self.running, self.status = mark.encode(), True, None
            os.write(self.commands, LINES.replace("MARK", mark).encode())
        elif request["do"] == "write":
            if not self.running:
                return "idle"
            text = request["text"]
            data = b"\x03" if text == INTERRUPT else (text + "\n").encode()
            if text != INTERRUPT:
                self.quiet_at = time.monotonic() + QUIET_S
            try:
                if os.write(self.terminal, data) < len(data):
                    return "it reads too slowly"
            except BlockingIOError:
                return "it reads too slowly"
        return ""

    def _printed(self) -> None:
        try:
            data = os.read(self.terminal, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.selector.unregister(self.terminal)
            return
        if self.quiet_at:
            self.quiet_at = time.monotonic() + QUIET_S
        self.kept.add(data)
        self._look_for_mark()

    def _look_for_mark(self) -> None:
        """End the command once its mark is printed; the mark is not shown."""
        if not self.mark or (self.mark not in self.kept.tail and self.mark not in self.kept.head + self.kept.tail):
            return
        whole = bytes(self.kept.head + self.kept.tail)
        where = whole.rindex(self.mark)
        shown = whole[:where] + whole[where + len(self.mark) :]
        self.kept.head, self.kept.tail = bytearray(shown[: self.kept.half]), bytearray(shown[self.kept.half :])
        self.mark = b""
        if self.reported_at:
            self._over()

    def _reported(self) -> None:
        data = os.read(self.reports, CHUNK)
        if data:
            self.status, self.reported_at = int(data.split()[-1]), time.monotonic()
            if not self.mark:
                self._over()
            return
        self.selector.unregister(self.reports)
        _, status = os.waitpid(self.pid, 0)
        self._printed_rest()
        self.status, self.ended = os.waitstatus_to_exitcode(status), True
        self._over()

    def _printed_rest(self) -> None:
        while self.terminal in self.selector.get_map():
            try:
                self.kept.add(os.read(self.terminal, CHUNK) or b"")
            except OSError:
                return

    def _over(self) -> None:
        self.running, self.mark, self.reported_at = False, b"", 0.0

    def _state(self) -> dict[str, Any]:
        output, cut = self.kept.take()
        return {"output": output, "cut": cut, "running": self.running, "status": self.status, "ended": self.ended}

    def _answer(self, answer: dict[str, Any]) -> None:
        assert self.waiting is not None
        with suppress(OSError):
            self.waiting.sendall(json.dumps(answer).encode())
        self.waiting.close()
        self.waiting = None


def serve(listening: socket.socket, name: str, cwd: str, most: int) -> None:
    """Become the process of a session; never return."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        Session(listening, name, cwd, most).run()
    finally:
        os._exit(0)


def connected(name: str) -> socket.socket | None:
    """Return a connection to a session; None if there is none."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(name)
    except OSError:
        connection.close()
        return None
    return connection


def answer(folder: str, cwd: str, request: dict[str, Any]) -> dict[str, Any]:
    """Pass a request to its session, which an ``exec`` starts, and return the answer."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.chdir(folder)  # the path of a socket has to be short
    name = hashlib.sha256(request["id"].encode()).hexdigest()[:24]
    connection = connected(name)
    if connection is None:
        if request["do"] != "exec":
            return {"error": "no session"}
        with suppress(OSError):
            os.unlink(name)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(name)
        listening.listen(8)
        if os.fork() == 0:
            serve(listening, name, cwd, request["most"])
        listening.close()
        connection = connected(name)
        assert connection is not None
    with connection:
        connection.sendall(json.dumps(request).encode() + b"\n")
        data = b"".join(iter(lambda: connection.recv(CHUNK), b""))
    return json.loads(data)


if __name__ == "__main__":
    print(json.dumps(answer(sys.argv[1], sys.argv[2], json.loads(sys.stdin.buffer.read()))))
