"""A sandbox that is told what to run and answers by a script, for tests of how agent programs are started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentrl.harness.interface import Assignment
from agentrl.sandbox.interface import HOME, ExecResult

KEY = "sk-episode-0123456789"
ASSIGNMENT = Assignment("Write “hello”.", "http://127.0.0.1:30000/v1", KEY, "org/policy", 50.0)


def result(output: str, exit_code: int | None = 0) -> ExecResult:
    """Return what a program did."""
    return ExecResult(exit_code, output.encode(), 0, exit_code is None, 1.0)


@dataclass
class Told:
    """A sandbox that answers each command with the next result, and writes down what it is told."""

    answers: list[ExecResult]
    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    commands: list[tuple[Sequence[str], float, Mapping[str, str]]] = field(default_factory=list)

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
        """Return the next result."""
        self.commands.append((argv, timeout_s, env or {}))
        return self.answers.pop(0)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Note a file."""
        self.files[path] = (data, mode)

    async def read_file(self, path: str, *, most_bytes: int = 1 << 20) -> bytes:
        """Return a noted file."""
        return self.files[path][0]

    async def stop(self) -> None:
        """Do nothing."""


TELL_CONTEXT = result("20000\n")
"""The answer to the question how long the model's context is."""
