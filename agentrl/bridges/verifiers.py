"""Environments of the package `verifiers` (0.4), played out of process.

``--env verifiers:NAME`` of a pool. The package's pins conflict with ours, so it has a virtual environment of its own, which
`scripts/setup_verifiers.sh` installs. Each lease has a worker there. Guarantees: a worker inherits no variable of the pool,
and ends with its lease. A worker that dies, hangs or prints something else is an infrastructure failure.

Whatever the worker does wrong is an `InfraError`: it ends, prints something else, or reports a failure of its
own. One question at a time. After an error, or a question that was cut off, the program is of no more use.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from asyncio.subprocess import Process
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentrl.environment import Environment, Task, Weight
from agentrl.exceptions import InfraError, InvalidError
from agentrl.processes import Processes
from agentrl.protocol import MAX_ITEMS, JsonObject, Observation, StepResult, Verdict, is_quick
from groundwork.exceptions import ConfigError

MAX_BYTES = 1 << 24
"""Of an answer."""
SHOWN = 200
PREFIX = "verifiers:"
WORKER = Path(__file__).with_name("verifiers_worker.py")
PYTHON = Path(__file__).resolve().parents[2] / ".cache/verifiers/bin/python"
PYTHON_VARIABLE = "AGENTRL_VERIFIERS_PYTHON"
PATH_VARIABLE = "AGENTRL_VERIFIERS_PATH"
MEMORY_MIB = 512
TASKS_S = 300.0
PASSED = 0.5


class Lines:
    """Asks one program; the process stays its starter's. Start it with ``limit=MAX_BYTES``."""

    def __init__(self, name: str, process: Process) -> None:
        """Take over the pipes of ``process``, whose name appears in errors."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._name = name
        self._process = process
        self._to, self._from = process.stdin, process.stdout
        self._broken = False

    async def ask(self, question: JsonObject) -> dict[str, Any]:
        """Return the answer to a question.

        Raises:
            InfraError: there is none; ``code`` is ``worker_lost``, ``worker_garbage``, or ``worker_failed`` with the
                program's own words.
        """
        if self._broken:
            raise InfraError(f"{self._name} failed before; take a new lease", code="worker_lost")
        self._broken = True
        try:
            self._to.write(json.dumps(question).encode() + b"\n")
            await self._to.drain()
            line = await self._from.readline()
        except (ConnectionError, ValueError) as error:
            raise InfraError(f"{self._name} cannot be asked: {error}", code="worker_lost") from error
        if not line.endswith(b"\n"):
            status = await self._process.wait()
            raise InfraError(f"{self._name} ended with status {status}; see the pool's log", code="worker_lost")
        try:
            answer = json.loads(line) if is_quick(line) else None
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise InfraError(
                f"{self._name} printed no JSON object of at most {MAX_ITEMS} values: {line[:SHOWN]!r}",
                code="worker_garbage",
            )
        if "error" in answer:
            raise InfraError(f"{self._name}: {answer['error']}", code="worker_failed")
        self._broken = False
        return answer


class VerifiersEnvironment(Environment):
    """An episode of ``name``, which a subclass sets: an action is the agent's reply as ``{"text": TEXT}``."""

    name: str

    def __init__(self, processes: Processes) -> None:
        super().__init__(processes)
        self._lines: Lines | None = None

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        """Return the tasks of the environment's dataset.

        Raises:
            ConfigError: the package is not installed, or the environment cannot be played here; it says why.
        """
        command = [*_command(cls.name), "tasks"]
        try:
            done = subprocess.run(command, env=_variables(), capture_output=True, timeout=TASKS_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise ConfigError(f"{PREFIX}{cls.name} did not list its tasks within {TASKS_S:g} s") from error
        try:
            found: dict[str, Any] = json.loads(done.stdout)
        except ValueError as error:
            said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or "nothing"
            raise ConfigError(f"{PREFIX}{cls.name} cannot list its tasks; its worker said {said}") from error
        if "error" in found:
            raise ConfigError(f"{PREFIX}{cls.name} cannot be played: {found['error']}")
        weight = Weight(memory_mib=MEMORY_MIB)
        return [Task(f"{cls.name}/{item['idx']}", {"idx": item["idx"]}, weight) for item in found["tasks"]]

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start the task; ``data`` has its ``messages``. The package takes no seed, so ``seed`` changes nothing."""
        if self._lines is None:
            process = await self.processes.spawn(
                [*_command(self.name), "play"],
                env=_variables(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=MAX_BYTES,
            )
            self._lines = Lines(f"the worker of {PREFIX}{self.name}", process)
        return _observation(await self._lines.ask({"reset": task.data["idx"]}))

    async def step(self, action: JsonObject) -> StepResult:
        """Give the agent's reply, and return the environment's messages."""
        assert self._lines is not None
        text = action.get("text")
        if not isinstance(text, str) or set(action) != {"text"}:
            raise InvalidError('send the reply as {"text": TEXT}; there are no tools', code="invalid_action")
        answer = await self._lines.ask({"step": text})
        return StepResult(observation=_observation(answer), done=bool(answer["done"]))

    async def evaluate(self) -> Verdict:
        """Return the environment's own reward as score, and its parts in ``detail``."""
        assert self._lines is not None
        found = await self._lines.ask({"evaluate": True})
        score = float(found["reward"])
        detail = json.dumps({name: found[name] for name in ("rewards", "metrics")})
        return Verdict(status="ok" if score >= PASSED else "task_failed", score=score, detail=detail)

    async def close(self) -> None:
        """Leave the worker to the pool, which ends it."""
        self._lines = None


def verifiers_environment(name: str) -> type[VerifiersEnvironment]:
    """Return the class for ``verifiers:NAME``.

    Raises:
        ConfigError: the package is not installed.
    """
    if not name or name.startswith("-"):
        raise ConfigError(f"--env {PREFIX}{name}: write {PREFIX}NAME, such as {PREFIX}my-environment")
    if not _python().is_file():
        raise ConfigError(f"--env {PREFIX}{name}: verifiers is not installed; run bash scripts/setup_verifiers.sh")
    return type("VerifiersEnvironment", (VerifiersEnvironment,), {"name": name})


def _observation(answer: dict[str, Any]) -> Observation:
    messages = answer.get("messages")
    if not isinstance(messages, list):
        raise InfraError("the worker of verifiers answered without messages", code="worker_garbage")
    text = "\n\n".join(str(message.get("content", "")) for message in messages)
    return Observation(text=text, data={"messages": messages})


def _python() -> Path:
    return Path(os.environ.get(PYTHON_VARIABLE) or PYTHON)


def _command(name: str) -> list[str | Path]:
    return [_python(), "-P", WORKER, name]  # its folder has a module named like the package


def _variables() -> dict[str, str]:
    """Return a worker's whole environment: no key of the pool is in it."""
    return {
        "PATH": os.defpath,
        "HOME": str(PYTHON.parents[1] / "home"),
        "PYTHONPATH": os.environ.get(PATH_VARIABLE, ""),
    }
