"""An agent program as one declaration: how it is installed, what it is told, how it starts, and how it ends.

A declaration is a subclass of `Program` with its attributes and `launch`. The program ends by itself, or by the time limit; what it
leaves is the verifier's. Guarantees: its settings and state lie below /tmp and never in the task's folder. The key is in no
argument, and in files only this user may read.
"""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import ClassVar

from agentrl.exceptions import InfraError
from agentrl.harness.interface import Assignment
from agentrl.sandbox.interface import ExecResult, Mount, Sandbox
from groundwork.exceptions import ConfigError

ROOT = Path(__file__).resolve().parents[2]
MAX_OUTPUT = 16_384
MAX_REPLY = 8192
"""Tokens of one reply; at most a quarter of the context."""
REQUEST_SECONDS = 3600
"""Seconds that a reply may take; an engine may stand still while it gets new weights."""
ASK_SECONDS = 120.0
ASK = """
import json, os, urllib.request
url, headers = os.environ["URL"] + "/models", {"Authorization": "Bearer " + os.environ["KEY"]}
with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
    print(int(json.load(answer)["data"][0]["max_model_len"]))
"""
CANNOT_START = (126, 127)
NO_ADDRESSES = (b"Failed to reserve virtual memory", b"RangeError: Out of memory", b"panic: out of memory")
"""What V8 and JavaScriptCore say when a process may have less memory than their threads reserve; they use a small part of that."""


@dataclass(frozen=True)
class Launch:
    """One start of a program.

    Attributes:
        command: and its arguments.
        files: to write before it, by path below /tmp.
        environment: added to the sandbox's.
    """

    command: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


class Program(ABC):
    """A program of others; see `agentrl.harness.interface.Harness` for ``name``, ``memory_mib`` and ``processes``.

    Attributes:
        setup: the script that installs it, and its arguments; with ``--check`` it says whether that is done.
        installed: the folder that it is installed into.
        inside: where the sandbox has that folder.
    """

    name: str
    memory_mib: int
    processes: int
    setup: ClassVar[Sequence[str]]
    installed: ClassVar[Path]
    inside: ClassVar[str]

    def __init__(self) -> None:
        self._mounts: Sequence[Mount] = ()

    @abstractmethod
    async def launch(self, assignment: Assignment, sandbox: Sandbox) -> Launch:
        """Return how it starts on an instruction; `context_window` asks in the sandbox how long the model's context is."""
        ...

    def mounts(self) -> Sequence[Mount]:
        """Return the folder of the program; once it was found, it is not looked for again.

        Raises:
            ConfigError: it is not installed as locked.
        """
        if not self._mounts:
            script, *words = self.setup
            if subprocess.run([ROOT / script, "--check", *words], check=False, capture_output=True).returncode != 0:
                raise ConfigError(f"{self.name} is not installed; run bash {' '.join(self.setup)}")
            self._mounts = [Mount(self.installed, self.inside)]
        return self._mounts

    async def run(self, sandbox: Sandbox, assignment: Assignment) -> ExecResult:
        """Run it; see `agentrl.harness.interface.Harness.run`.

        Raises:
            InfraError: the sandbox is gone, the program does not start, or the model's server does not tell its context.
        """
        begun = monotonic()
        launch = await self.launch(assignment, sandbox)
        for path, text in launch.files.items():
            await sandbox.write_file(path, text.encode(errors="replace"), mode=0o600)
        result = await sandbox.execute(
            launch.command,
            timeout_s=max(1.0, assignment.timeout_s - (monotonic() - begun)),
            env=launch.environment,
            most_output=MAX_OUTPUT,
        )
        self._check_started(result)
        return result

    def _check_started(self, result: ExecResult) -> None:
        """Raise InfraError if the program or one of its threads did not start."""
        if result.exit_code in CANNOT_START:
            said = result.output.decode(errors="replace")[-500:]
            raise InfraError(f"{self.name} does not start in this sandbox: {said}", code="harness_failed")
        if (
            result.exit_code is not None
            and result.exit_code < 0
            and any(said in result.output for said in NO_ADDRESSES)
        ):
            raise InfraError(
                f"{self.name}'s threads reserve more memory than a process may have here; it needs sandboxes whose memory a "
                "control group bounds, see instructions/sandbox.md",
                code="harness_failed",
            )


async def context_window(sandbox: Sandbox, assignment: Assignment) -> int:
    """Return the tokens of the model's context, as its server tells them.

    Raises:
        InfraError: it does not.
    """
    env = {"URL": assignment.base_url, "KEY": assignment.api_key}
    result = await sandbox.execute(["python3", "-I", "-S", "-c", ASK], timeout_s=ASK_SECONDS, env=env)
    text = result.output.decode(errors="replace").strip()
    if result.exit_code != 0 or not text.isdecimal():
        said = text.replace(assignment.api_key, "[api key]")[-500:]
        raise InfraError(f"the model's server does not tell its context at /models: {said}", code="no_context_window")
    return int(text)


def longest_reply(window: int) -> int:
    """Return the tokens that a reply may have in a context of ``window`` tokens."""
    return min(MAX_REPLY, window // 4)


def node_packages(name: str) -> Path:
    """Return the folder into which ``scripts/setup_node.sh`` installs a set of packages."""
    return ROOT / ".cache" / "node" / name / "node_modules"
