"""The first process inside a sandbox: runs commands and moves files for the host, over its stdin and stdout.

Guarantees: a command gets no descriptor of this process, and cannot read, trace or (where this process is number 1) signal it.
Memory that commands take up ends commands, never this process, which is not in their control groups. A time limit ends the command
with all its descendants, also those that left its process group. This process ends with everything below it when its stdin closes.

Requests have an ``id`` and ``do``: ``execute`` (body: stdin), ``cancel``, ``end`` (all commands), ``write_file`` (body: the data)
or ``read_file``. An answer has the ``id`` and what `agentrl.sandbox.supervised` reads, or ``error``. The answer to nothing, with
the id 0, comes first and says that all is ready. One thread runs everything, so a sandbox without a free process can still answer.
What loses its keeper, because a command killed it, is ended.

A command has a keeper, a fork of the supervisor that adopts the command's orphans, so that every descendant has it above. It lives
as long as something is below it. A command gets three descriptors and nothing else of the supervisor.

Files are written and read for the host, from inside. Nothing is written outside `WRITABLE`, whatever links a program plants, also
while this runs. A reader gets regular files only, so a pipe or a device cannot hold this process up. A file is replaced whole or
not at all.

The forwarder leads loopback ports of the sandbox to Unix sockets of the host. Bytes pass as they come, in both directions, with
bounded memory per connection; a half-closed connection stays half open. It is a fork of the supervisor, and as hard to reach.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

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


def forward(doors: Mapping[socket.socket, str]) -> None:
    """Forward the connections of each listening socket to a Unix socket, for ever."""
    import asyncio  # here, because a sandbox without doors starts faster without it

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                writer.write(data)
                await writer.drain()
            writer.write_eof()

    async def serve(listening: socket.socket, path: str) -> None:
        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                far_reader, far_writer = await asyncio.open_unix_connection(path)
            except OSError:
                writer.close()
                return
            back = asyncio.ensure_future(pump(far_reader, writer))
            there = asyncio.ensure_future(pump(reader, far_writer))
            await asyncio.wait({back, there})
            for item in (writer, far_writer):
                item.close()

        listening.setblocking(False)
        server = await asyncio.start_server(connect, sock=listening)
        await server.serve_forever()

    async def serve_all() -> None:
        await asyncio.gather(*(serve(listening, path) for listening, path in doors.items()))

    asyncio.run(serve_all())


WRITABLE = ("/work", "/tmp")


class Refused(Exception):
    """The request makes no sense; the text says why."""


def resolved(path: str) -> str:
    """Return an absolute path without links."""
    if not path.startswith("/") or "\0" in path:
        raise Refused(f"{path!r} is not an absolute path")
    return os.path.realpath(path)


def walk(path: str, *, make: bool) -> tuple[int, str]:
    """Return a descriptor of the folder that a file is in, and its name there, having followed no link on the way.

    The path was resolved before; whoever puts a link in its way meanwhile is refused.
    """
    folder = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    *names, last = path.strip("/").split("/")
    for name in names:
        try:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=folder)
            inner = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder, last


def write_file(path: str, data: bytes, mode: int) -> None:
    """Replace a file below `WRITABLE` at once, with the folders above it."""
    real = resolved(path)
    if not real.startswith(tuple(f"{item}/" for item in WRITABLE)):
        raise Refused(f"{path} leads to {real}, which is not below {' or '.join(WRITABLE)}")
    folder, name = walk(real, make=True)
    new = f".{os.urandom(8).hex()}"
    try:
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=folder)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
            os.fchmod(file, mode)
            os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)  # a reader sees the old file or the new one
        except OSError:
            os.unlink(new, dir_fd=folder)
            raise
        finally:
            os.close(file)
    finally:
        os.close(folder)


def read_file(path: str, most: int) -> bytes:
    """Return a regular file of at most ``most`` bytes."""
    real = resolved(path)
    if real.startswith("/proc/"):
        raise Refused(f"{path} leads to {real}, which is not a file of the sandbox")
    folder, name = walk(real, make=False)
    try:
        # A FIFO without a writer would stop the one loop, and a terminal would become this process's own.
        file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    with open(file, "rb", buffering=0) as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise Refused(f"{path} is not a regular file")
        data = bytearray()
        while len(data) <= most and (chunk := opened.read(min(CHUNK, most + 1 - len(data)))):
            data += chunk
    if len(data) > most:
        raise Refused(f"{path} is larger than {most} bytes")
    return bytes(data)


STATUS = struct.Struct(">i")
NICENESS = 10
NOT_STARTED = 126
# A process that cannot be traced cannot write its own score, so a shell does it after exec: memory runs out for commands first.
COMMAND = ("/bin/sh", "-c", 'echo 1000 2>/dev/null >/proc/self/oom_score_adj; exec "$@"', "sh")


def keep(
    argv: list[str],
    env: dict[str, str],
    cwd: str,
    ends: tuple[int, int, int],
    limits: dict[str, int],
    groups: list[int],
) -> None:
    """Be the keeper of a command: start it in its control groups, report how it ended, and stay until nothing is below."""
    stdin, output, report = ends
    try:
        enter(groups)
        close_all_but(ends)
        prctl(SET_CHILD_SUBREAPER, 1)
        child = os.fork()
    except OSError as error:
        os.write(output, f"{argv[0]}: cannot start: {error.strerror}\n".encode())
        os.write(report, STATUS.pack(NOT_STARTED << 8))  # as `os.wait` writes an exit code
        return
    if child == 0:
        start(argv, env, cwd, stdin, output, limits)
    os.close(stdin)
    os.close(output)
    # Orphans of the command become children of this process, the nearest subreaper; without any left the wait fails.
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            return
        if pid == child:
            os.write(report, STATUS.pack(status))


def start(argv: list[str], env: dict[str, str], cwd: str, stdin: int, output: int, limits: dict[str, int]) -> None:
    """Become the command, in a session and process group of its own."""
    try:
        os.setsid()
        os.dup2(stdin, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.nice(NICENESS)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for name, most in limits.items():
            resource.setrlimit(getattr(resource, name), (most, most))
        # Python ignores signals that end other programs, and an ignored signal stays ignored after exec.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(cwd)
        os.execve(COMMAND[0], [*COMMAND, *argv], env)
    except (OSError, ValueError) as error:
        os.write(2, f"{argv[0]}: cannot start: {error}\n".encode())
    finally:
        os._exit(NOT_STARTED)


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
        # A signal without a handler would not reach the wake-up descriptor, so a death would not end the wait below.
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
                if key.fd in self._selector.get_map():  # one before it in this round may have closed it
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
                # The fork shares the wake-up descriptor: deaths of the command would wake the supervisor.
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
    prctl(SET_DUMPABLE, 0)  # no command may trace it or read its memory
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
