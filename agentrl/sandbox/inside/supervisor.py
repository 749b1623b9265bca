"""The first process inside a sandbox: runs commands and moves files for the host, over its stdin and stdout.

Guarantees: a command gets no descriptor of this process, and cannot read, trace or (where this process is number 1)
signal it. Memory that commands take up ends commands, never this process, which is not in their control groups. A time limit ends the command with all its descendants, also those that left its process group. This process
ends with everything below it when its stdin closes.

Requests have an ``id`` and ``do``: ``execute`` (body: stdin), ``cancel``, ``end`` (all commands), ``write_file`` (body: the data)
or ``read_file``. An answer has the ``id`` and what `agentrl.sandbox.supervised` reads, or ``error``. The answer to nothing, with the id 0, comes
first and says that all is ready. One thread runs everything, so a sandbox without a free process can still answer. What
loses its keeper, because a command killed it, is ended.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

from agentrl.sandbox.inside.commands import NOT_STARTED, STATUS, keep
from agentrl.sandbox.inside.files import Refused, read_file, write_file
from agentrl.sandbox.inside.forwarder import forward
from agentrl.sandbox.inside.kernel import (
    SET_CHILD_SUBREAPER,
    SET_DUMPABLE,
    SET_NO_NEW_PRIVILEGES,
    close_all_but,
    end_below,
    enter,
    prctl,
    processes,
)
from agentrl.sandbox.inside.wire import CHUNK, Capped, Frames, frame

MAX_LEFT_IN_PIPE = 1 << 20


class Command:
    """A command that runs, and then what it left in the background."""

    def __init__(self, request: dict[str, Any], keeper: int, stdin: int, output: int, report: int, body: bytes) -> None:
        self.number = request["id"]
        self.keeper, self.stdin, self.output, self.report = keeper, stdin, output, report
        self.typed = memoryview(body)
        self.kept: Capped | None = Capped(request["most_output"])
        self.started = time.monotonic()
        self.deadline = self.started + request["timeout_s"]


class Supervisor:
    """The one loop of this process."""

    def __init__(self, limits: dict[str, int], doors: dict[str, str], groups: list[int]) -> None:
        self._limits = limits
        self._groups = groups
        self._frames = Frames()
        self._commands: dict[int, Command] = {}
        self._keepers: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ, self._requests)
        woken, wakes = socket.socketpair()
        for each in (woken, wakes):
            each.setblocking(False)
        self._ends = (woken, wakes)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        self._selector.register(woken, selectors.EVENT_READ, lambda: woken.recv(CHUNK))
        self._doors = {socket.create_server(("127.0.0.1", int(port))): path for port, path in doors.items()}
        self._forwarder = self._forward() if doors else 0

    def run(self) -> None:
        """Serve until stdin closes."""
        self._answer({"id": 0})
        while True:
            deadlines = [command.deadline for command in self._commands.values()]
            wait = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
            for key, _ in self._selector.select(wait):
                if key.fd in self._selector.get_map():
                    key.data()
            for command in list(self._commands.values()):
                if command.deadline <= time.monotonic():
                    self._end(command, timed_out=True)
            self._reap()

    def _requests(self) -> None:
        data = os.read(0, CHUNK)
        if not data:
            end_below(os.getpid(), also=False)
            os._exit(0)
        for fields, body in self._frames.feed(data):
            try:
                self._do(fields, body)
            except Refused as error:
                self._answer({"id": fields["id"], "error": str(error)})
            except OSError as error:
                self._answer({"id": fields["id"], "error": f"{fields.get('path', '')}: {error.strerror}"})

    def _do(self, fields: dict[str, Any], body: bytes) -> None:
        if fields["do"] == "execute":
            self._execute(fields, body)
        elif fields["do"] == "cancel":
            if fields["of"] in self._commands:
                self._end(self._commands[fields["of"]], timed_out=False)
        elif fields["do"] == "end":
            self._end_all()
            self._answer({"id": fields["id"]})
        elif fields["do"] == "write_file":
            write_file(fields["path"], body, fields["mode"])
            self._answer({"id": fields["id"]})
        else:
            self._answer({"id": fields["id"]}, read_file(fields["path"], fields["most_bytes"]))

    def _execute(self, request: dict[str, Any], body: bytes) -> None:
        if not os.path.isdir(request["cwd"]):
            raise Refused(f"cwd {request['cwd']!r} is not a folder of the sandbox")
        pipes: list[int] = []
        try:
            for _ in range(3):
                pipes += os.pipe()
            keeper = os.fork()
        except OSError as error:
            for each in pipes:
                os.close(each)
            text = f"{request['argv'][0]}: cannot start: {error.strerror}\n".encode()
            self._answer_execute(request["id"], NOT_STARTED, text, 0, False, 0.0)
            return
        command_in, stdin, output, command_out, report, reporting = pipes
        if keeper == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                ends = (command_in, command_out, reporting)
                keep(request["argv"], request["env"], request["cwd"], ends, self._limits, self._groups)
            finally:
                os._exit(0)
        for each in (command_in, command_out, reporting):
            os.close(each)
        for each in (stdin, output):
            os.set_blocking(each, False)
        command = Command(request, keeper, stdin, output, report, body)
        self._commands[command.number] = command
        self._keepers.add(keeper)
        self._selector.register(stdin, selectors.EVENT_WRITE, lambda: self._type(command))
        self._selector.register(output, selectors.EVENT_READ, lambda: self._print(command))
        self._selector.register(report, selectors.EVENT_READ, lambda: self._report(command))

    def _type(self, command: Command) -> None:
        """Write to a command's stdin what it takes now."""
        try:
            command.typed = command.typed[os.write(command.stdin, command.typed) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            command.typed = command.typed[:0]
        if not command.typed:
            self._close(command.stdin)
            command.stdin = -1

    def _print(self, command: Command) -> int:
        """Take output; what the background writes later is thrown away."""
        try:
            data = os.read(command.output, CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self._close(command.output)
            command.output = -1
        elif command.kept is not None:
            command.kept.add(data)
        return len(data)

    def _report(self, command: Command) -> None:
        """Hear from a keeper that the command ended, or that the keeper did."""
        data = os.read(command.report, STATUS.size)
        if data:
            (status,) = STATUS.unpack(data)
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            self._finish(command, code, False)
            return
        self._close(command.report)
        if command.number in self._commands:
            self._end_strays()
            self._finish(command, -signal.SIGKILL, False)

    def _end(self, command: Command, *, timed_out: bool) -> None:
        """End a command and all below it."""
        if not end_below(command.keeper, also=True):
            os._exit(1)
        self._end_strays()
        self._finish(command, None, timed_out)

    def _end_all(self) -> None:
        """End all commands, and what ended ones left in the background."""
        for command in list(self._commands.values()):
            self._end(command, timed_out=False)
        for keeper in self._keepers:
            if not end_below(keeper, also=True):
                os._exit(1)
        self._end_strays()

    def _end_strays(self) -> None:
        """End what has no keeper."""
        below = processes()
        known = {os.getpid(), self._forwarder, *self._keepers}
        for child in set(below.get(os.getpid(), [])) - known:
            if not end_below(child, also=True):
                os._exit(1)

    def _finish(self, command: Command, code: int | None, timed_out: bool) -> None:
        del self._commands[command.number]
        if command.stdin >= 0:
            self._close(command.stdin)
        left = MAX_LEFT_IN_PIPE
        while left > 0 and command.output >= 0 and (read := self._print(command)):
            left -= read
        assert command.kept is not None
        output, cut = command.kept.result()
        command.kept = None
        self._answer_execute(command.number, code, output, cut, timed_out, time.monotonic() - command.started)

    def _answer_execute(
        self, number: int, code: int | None, output: bytes, cut: int, timed_out: bool, seconds: float
    ) -> None:
        fields = {"id": number, "exit_code": code, "cut_bytes": cut, "timed_out": timed_out, "seconds": seconds}
        self._answer(fields, output)

    def _answer(self, fields: dict[str, Any], body: bytes = b"") -> None:
        view = memoryview(frame(fields, body))
        while view:
            view = view[os.write(1, view) :]

    def _close(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def _reap(self) -> None:
        """Bury the dead; a keeper that was killed leaves strays."""
        killed = False
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self._forwarder:
                    self._forwarder = self._forward()
                killed |= pid in self._keepers and status != 0
                self._keepers.discard(pid)
        if killed:
            self._end_strays()

    def _forward(self) -> int:
        """Start what leads the doors' ports to their sockets; a command that kills it gains nothing."""
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                enter(self._groups)
                close_all_but({listening.fileno() for listening in self._doors})
                forward(self._doors)
            finally:
                os._exit(NOT_STARTED)
        return pid


def main() -> None:
    """Run with the settings of the command line, a JSON object: ``limits`` (of setrlimit), ``doors`` and ``groups``."""
    settings = json.loads(sys.argv[1])
    prctl(SET_DUMPABLE, 0)
    prctl(SET_NO_NEW_PRIVILEGES, 1)
    prctl(SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.umask(0o022)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for each in settings["groups"]:
        os.set_inheritable(each, False)
    Supervisor(settings["limits"], settings["doors"], settings["groups"]).run()


if __name__ == "__main__":
    main()
