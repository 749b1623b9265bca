"""The host's half of a sandbox whose first process is `agentrl.sandbox.inside.supervisor`, whichever provider started it.

Guarantees: an answer reaches the call that asked. When the supervisor is gone, or does not answer, every call raises
InfraError. A cancelled `execute` ends its command. A provider mounts `CODE` at `CODE_INSIDE` and runs `command`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from abc import ABC, abstractmethod
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentrl.exceptions import InfraError, InvalidError
from agentrl.sandbox.inside.wire import CHUNK, MAX_BODY, MAX_HEADER, Frames, frame
from agentrl.sandbox.interface import HOME, ExecResult, exec_result, execute_request

CODE = Path(__file__).resolve().parent / "inside"
ROOT_INSIDE = "/run/agentrl"
CODE_INSIDE = f"{ROOT_INSIDE}/agentrl/sandbox/inside"
START = f"import sys; sys.path.insert(0, '{ROOT_INSIDE}'); from agentrl.sandbox.inside.supervisor import main; main()"
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": HOME,
    "LANG": "C.UTF-8",
}
START_S = 60.0
ANSWER_S = 60.0
"""How long an answer may take beyond the command's own time limit, on a machine that is busy."""
END_S = 10.0
MAX_ERRORS = 4096


def command(python: str, limits: Mapping[str, int], doors: Mapping[int, str], groups: Sequence[int] = ()) -> list[str]:
    """Return the command line of the supervisor.

    Args:
        python: the interpreter inside, 3.8 or newer.
        limits: of each command, by the name of the constant in `resource`, such as ``RLIMIT_NOFILE``.
        doors: the socket inside that each loopback port leads to.
        groups: descriptors of the ``cgroup.procs`` of the groups that commands enter; the supervisor stays outside.
    """
    settings = {
        "limits": dict(limits),
        "doors": {str(port): path for port, path in doors.items()},
        "groups": list(groups),
    }
    return [python, "-I", "-S", "-B", "-c", START, json.dumps(settings)]


class SupervisorCalls(ABC):
    """The calls of a `agentrl.sandbox.interface.Sandbox` as requests to its supervisor.

    Attributes:
        env: of every command.
    """

    env: Mapping[str, str]

    @abstractmethod
    async def _ask(self, fields: dict[str, Any], body: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """Have the supervisor do something that takes at most ``seconds``; return its answer.

        A cancelled call to ``execute`` ends its command.

        Raises:
            InfraError: the sandbox is gone, or does not answer.
            InvalidError: it refuses the request.
        """

    async def execute(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = HOME,
        most_output: int = 65_536,
    ) -> ExecResult:
        """Run a program; see `agentrl.sandbox.interface.Sandbox.execute`."""
        environment = {**self.env, **(env or {})}
        request = execute_request(argv, environment, timeout_s=timeout_s, cwd=cwd, most_output=most_output)
        return exec_result(*await self._ask(request, stdin, timeout_s))

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file; see `agentrl.sandbox.interface.Sandbox.write_file`."""
        await self._ask({"do": "write_file", "path": path, "mode": mode & 0o777}, data, 0.0)

    async def read_file(self, path: str, *, most_bytes: int = 1 << 20) -> bytes:
        """Return a file; see `agentrl.sandbox.interface.Sandbox.read_file`."""
        request = {"do": "read_file", "path": path, "most_bytes": min(most_bytes, MAX_BODY)}
        return (await self._ask(request, b"", 0.0))[1]

    async def end_commands(self) -> None:
        """End all commands; see `agentrl.sandbox.interface.Sandbox.end_commands`."""
        await self._ask({"do": "end"}, b"", 0.0)


class SupervisedSandbox(SupervisorCalls):
    """A `agentrl.sandbox.interface.Sandbox` behind a started process; call `begin` first."""

    def __init__(self, process: Process, env: Mapping[str, str], end: Callable[[], Awaitable[None]]) -> None:
        """Take over a process.

        Args:
            process: leads to the supervisor; stdin, stdout and stderr are pipes.
            env: of every command, besides `ENVIRONMENT`.
            end: ends whatever is left, and removes it; called once, by `stop`, and again if it raised.
        """
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self.env = {**ENVIRONMENT, **env}
        self._end = end
        self._numbers = itertools.count(1)
        self._ready: asyncio.Future[tuple[dict[str, Any], bytes]] = asyncio.get_running_loop().create_future()
        self._waiting = {0: self._ready}
        self._lost: str | None = None
        self._stopping = asyncio.Lock()
        self._stopped = False
        self._errors = bytearray()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._read_errors())]

    async def begin(self) -> None:
        """Wait until the supervisor is ready.

        Raises:
            InfraError: it does not start; the message has what it printed.
        """
        try:
            async with asyncio.timeout(START_S):
                await self._ready
        except (InfraError, TimeoutError) as error:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), END_S)
            text = self._errors.decode(errors="replace").strip() or "it printed nothing"
            raise InfraError(f"the sandbox did not start: {text}", code="sandbox_not_started") from error
        finally:
            del self._waiting[0]

    async def stop(self) -> None:
        """End everything; see `agentrl.sandbox.interface.Sandbox.stop`."""
        async with self._stopping:
            if self._stopped:
                return
            self._lose("the sandbox was stopped")
            self._stdin.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), END_S)
            await self._end()
            # The supervisor's pipes close when it is gone, and with it everything below it.
            _, open_still = await asyncio.wait(self._tasks, timeout=END_S)
            if open_still:
                raise InfraError("a process of the sandbox survives SIGKILL; look at it", code="leftovers")
            self._stopped = True

    async def _ask(self, fields: dict[str, Any], body: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """See `SupervisorCalls._ask`."""
        number = next(self._numbers)
        data = frame({"id": number, **fields}, body)
        if len(body) > MAX_BODY or len(data) - len(body) > MAX_HEADER:
            raise InvalidError(
                f"a call takes at most {MAX_BODY} bytes of data and {MAX_HEADER} bytes of arguments", code="too_large"
            )
        if self._lost is not None:
            raise InfraError(self._lost, code="sandbox_lost")
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            async with asyncio.timeout(seconds + ANSWER_S):
                self._stdin.write(data)
                await self._stdin.drain()
                answer, output = await future
        except TimeoutError as error:
            self._lose("the sandbox does not answer")
            raise InfraError("the sandbox does not answer; take a new one", code="sandbox_lost") from error
        except OSError as error:
            raise InfraError("the sandbox ended", code="sandbox_lost") from error
        except asyncio.CancelledError:
            if fields["do"] == "execute" and self._lost is None:
                self._stdin.write(frame({"id": next(self._numbers), "do": "cancel", "of": number}))
            raise
        finally:
            self._waiting.pop(number, None)
        if "error" in answer:
            raise InvalidError(str(answer["error"]), code="refused_in_sandbox")
        return answer, output

    async def _read(self) -> None:
        """Hand out the answers until there are no more."""
        frames = Frames()
        try:
            while data := await self._stdout.read(CHUNK):
                for fields, body in frames.feed(data):
                    future = self._waiting.get(fields.get("id", -1))
                    if future is not None and not future.done():
                        future.set_result((fields, body))
        except ValueError as error:
            self._lose(f"the sandbox sent what is not an answer: {error}")
        self._lose("the sandbox ended")

    async def _read_errors(self) -> None:
        """Keep the last of what the provider's program and the supervisor complain about."""
        while data := await self._stderr.read(CHUNK):
            self._errors += data
            del self._errors[:-MAX_ERRORS]

    def _lose(self, reason: str) -> None:
        self._lost = self._lost or reason
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(InfraError(self._lost, code="sandbox_lost"))
