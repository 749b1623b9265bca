"""Agent programs for tests: what they do is a function of the test, which asks the model through the episode's door."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from agentrl.harness.interface import Assignment
from agentrl.sandbox.interface import ExecResult, Mount, Sandbox, SandboxSpec
from groundwork.exceptions import ConfigError

PATIENT_S = 60.0
Play = Callable[[Sandbox, Assignment], Awaitable[ExecResult]]


def result(output: str = "", *, timed_out: bool = False) -> ExecResult:
    """Return what a program that ended did."""
    return ExecResult(None if timed_out else 0, output.encode(), 3, timed_out, 1.5)


async def idle(sandbox: Sandbox, assignment: Assignment) -> ExecResult:
    """Do nothing."""
    return result()


async def shell(sandbox: Sandbox, command: str) -> ExecResult:
    """Run a line of bash."""
    return await sandbox.execute(["bash", "-c", command], timeout_s=PATIENT_S)


@dataclass
class ScriptedHarness:
    """Plays a test's function."""

    play: Play = idle
    name: str = "scripted"
    memory_mib: int = 100
    processes: int = 7
    shown: Sequence[Mount] = ()
    assignments: list[Assignment] = field(default_factory=list)

    def mounts(self) -> Sequence[Mount]:
        return self.shown

    async def run(self, sandbox: Sandbox, assignment: Assignment) -> ExecResult:
        self.assignments.append(assignment)
        return await self.play(sandbox, assignment)


class Missing(ScriptedHarness):
    """A program that is not installed; the pool's command finds it by its class."""

    def mounts(self) -> Sequence[Mount]:
        raise ConfigError("the program is not installed; run scripts/setup_it.sh")


def socket_of(spec: SandboxSpec) -> Path:
    """Return the host's end of the one door."""
    (door,) = spec.doors
    return door.socket


async def ask(socket: Path, key: str) -> int:
    """Ask the model as a program inside does; return the status, 0 if the answer broke off."""
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(transport=transport, headers=headers, timeout=PATIENT_S) as client:
        try:
            return (await client.post("http://door/v1/chat/completions", json={"messages": []})).status_code
        except httpx.RemoteProtocolError:
            return 0
