"""What a sandbox offers, whichever provider runs it.

Guarantees of every provider: a program inside has no network but the loopback ports of `SandboxSpec.doors`, sees no file,
variable or process of the host or of another sandbox but what the spec names, and stays within `Limits`. `Provider.check`
proves that on this machine before the first sandbox starts. After `Sandbox.stop` nothing of it is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agentrl.exceptions import InvalidError
from agentrl.processes import Processes
from agentrl.sandbox.inside.wire import MAX_BODY

HOME = "/work"
"""The one writable folder, besides /tmp, and the working directory of commands."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one sandbox.

    Attributes:
        memory_mib: of all its processes together.
        cpus: cores that they share.
        processes: that exist at a time, threads included.
        disk_mib: of what they write.
        open_files: of one process.
    """

    memory_mib: int = 512
    cpus: float = 1.0
    processes: int = 128
    disk_mib: int = 256
    open_files: int = 1024


@dataclass(frozen=True, slots=True)
class Door:
    """A loopback port inside the sandbox that leads to a Unix socket of the host."""

    port: int
    socket: Path


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of the host that the sandbox may read; clients never choose one."""

    host: Path
    inside: str


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What to start.

    Attributes:
        limits: bounds of all its programs together.
        env: the whole environment of its programs, besides PATH, HOME and LANG.
        mounts: what of the host it may read, besides the system's programs and libraries.
        doors: the only way out.
        image: of a container, by name; None for the provider's own. Providers without images refuse one.

    Example:
        >>> SandboxSpec(Limits(memory_mib=1024), env={"LANG": "C"}, mounts=[Mount(Path("/opt/tools"), "/tools")]).limits
        Limits(memory_mib=1024, cpus=1.0, processes=128, disk_mib=256, open_files=1024)
    """

    limits: Limits = Limits()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    mounts: Sequence[Mount] = ()
    doors: Sequence[Door] = ()
    image: str | None = None


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command did.

    Attributes:
        exit_code: of the program, negative for a signal; None if it was ended by the time limit.
        output: stdout and stderr in the order of writing; the head and the tail of it if it was too long.
        cut_bytes: number of bytes left out in the middle of ``output``.
        timed_out: whether the time limit ended it, with everything that it had started.
        seconds: that it ran.
    """

    exit_code: int | None
    output: bytes
    cut_bytes: int
    timed_out: bool
    seconds: float


class Sandbox(Protocol):
    """A running sandbox. Several calls may run at a time."""

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
        """Run a program to its end, or to its time limit.

        What it leaves in the background lives on until `end_commands` or `stop`.

        Args:
            argv: the program and its arguments; for a shell line ``["bash", "-c", line]``.
            timeout_s: seconds; then its whole process group is ended.
            stdin: what it reads.
            env: added to the spec's.
            cwd: folder that it runs in.
            most_output: bytes of output that are kept.

        Raises:
            InfraError: the sandbox is gone.
            InvalidError: the call makes no sense, for example a ``cwd`` that does not exist.
        """
        ...

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file below `HOME` or /tmp, and the folders above it.

        Raises:
            InvalidError: the path leaves these folders, or does not fit the disk limit.
            InfraError: the sandbox is gone.
        """
        ...

    async def read_file(self, path: str, *, most_bytes: int = 1 << 20) -> bytes:
        """Return a file as a program inside would read it.

        Raises:
            InvalidError: there is no such file, or it is larger than ``most_bytes``.
            InfraError: the sandbox is gone.
        """
        ...

    async def end_commands(self) -> None:
        """End all commands, and what they left in the background, also what is in a session of its own.

        Raises:
            InfraError: the sandbox is gone.
        """
        ...

    async def stop(self) -> None:
        """End everything in it and remove what it wrote; a second call does nothing."""
        ...


class Provider(Protocol):
    """Starts sandboxes of one kind."""

    name: str

    async def check(self) -> None:
        """Prove on this machine that sandboxes hold what the module promises.

        Raises:
            InfraError: one of the promises does not hold, with what to do about it.
        """
        ...

    async def sweep(self, pool: str) -> int:
        """End what an earlier server of a pool left outside this machine's processes; return how many sandboxes.

        Args:
            pool: its name, `ProcessLedger.pool`; no two servers use it at a time.

        Raises:
            InfraError: some of it does not end.
        """
        ...

    async def start(self, spec: SandboxSpec, processes: Processes) -> Sandbox:
        """Start a sandbox whose processes belong to a lease.

        Raises:
            InvalidError: the spec makes no sense for this provider.
            InfraError: it does not start.
        """
        ...


def execute_request(
    argv: Sequence[str], environment: Mapping[str, str], *, timeout_s: float, cwd: str, most_output: int
) -> dict[str, Any]:
    """Return the request to run a program; see `agentrl.sandbox.interface.Sandbox.execute`.

    Args:
        argv: the program and its arguments.
        environment: its whole environment.
        timeout_s: seconds.
        cwd: folder that it runs in.
        most_output: bytes of output that are kept.

    Raises:
        InvalidError: there is no program, a bound is out of range, or a text cannot be passed to a program.
    """
    if not argv or not argv[0]:
        raise InvalidError("there is no program to run; argv is empty", code="bad_command")
    if not 0 <= most_output <= MAX_BODY or timeout_s <= 0:
        raise InvalidError(
            f"most_output must be 0 to {MAX_BODY} and timeout_s above 0, not {most_output} and {timeout_s}",
            code="bad_command",
        )
    words = [*argv, *environment, *environment.values(), cwd]
    if any("\0" in word for word in words) or any("=" in name or not name for name in environment):
        raise InvalidError("arguments and variables hold no NUL, and names of variables no '='", code="bad_command")
    return {
        "do": "execute",
        "argv": list(argv),
        "env": dict(environment),
        "cwd": cwd,
        "timeout_s": timeout_s,
        "most_output": most_output,
    }


def exec_result(answer: Mapping[str, Any], output: bytes) -> ExecResult:
    """Return what a command did, from the supervisor's answer."""
    return ExecResult(answer["exit_code"], output, answer["cut_bytes"], answer["timed_out"], float(answer["seconds"]))
