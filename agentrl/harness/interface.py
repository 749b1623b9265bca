"""What a harness is: an agent program of others that runs, unmodified, in the sandbox of a task.

A harness knows which files of the host its program needs, and how to start it on an instruction. It knows nothing of gateway,
driver or rewards: the program finds an OpenAI-compatible model at a loopback port of its sandbox and works until it stops by
itself or its time is over. What it leaves in the working directory is judged afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import httpx

from agentrl.sandbox.interface import ExecResult, Mount, Sandbox

GATEWAY_URL = "http://127.0.0.1:30000"


@dataclass(frozen=True, slots=True)
class Assignment:
    """What an agent is told.

    Attributes:
        instruction: the task, in words.
        base_url: of the model, as the sandbox sees it, with ``/v1``.
        api_key: of the episode.
        model: name to send with each request.
        timeout_s: seconds until the agent is ended.
    """

    instruction: str
    base_url: str
    api_key: str
    model: str
    timeout_s: float


@runtime_checkable
class Harness(Protocol):
    """One agent program.

    Attributes:
        name: on the command line.
        memory_mib: that the program needs besides the task's commands.
        processes: that it needs besides them, threads included.
    """

    name: str
    memory_mib: int
    processes: int

    def mounts(self) -> Sequence[Mount]:
        """Return the folders of the host that hold the program; called for each run, in a thread.

        Raises:
            ConfigError: it is not installed; says which command installs it.
        """
        ...

    async def run(self, sandbox: Sandbox, assignment: Assignment) -> ExecResult:
        """Start the agent on an instruction, and return when it has ended or its time is over.

        A program that fails by itself, or that a model led astray, is not an error: the verifier judges what it left.

        Raises:
            InfraError: the sandbox is gone, or the program could not be started.
        """
        ...


def server_address(text: str) -> str | None:
    """Return the address of a server, without a path; None if the text is none, or has a user, a path or a query."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        return None
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.raw_path != b"/":
        return None
    return str(url)
