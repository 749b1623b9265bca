"""The environment of shell tasks: a sandbox with the task's files, commands in it, and a verdict from outside of it.

Actions: ``{"command": LINE, "timeout_s": S}`` runs a line of bash, and ``{"write_file": {"path": P, "content": TEXT}}`` writes
a file below the working directory or /tmp. Each command starts in the working directory; what it leaves in the background
lives on until the verdict.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.environment import Environment, Task, Weight
from agentrl.exceptions import InfraError, InvalidError
from agentrl.processes.owned import Processes
from agentrl.protocol import JsonObject, Observation, StepResult, Verdict
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.interface import HOME, Sandbox, SandboxSpec
from agentrl.tasks.harbor import HarborTask
from agentrl.tasks.shell.families import FAMILIES, NEEDS
from agentrl.tasks.shell.generate import SETTINGS, SPLITS, generate, task_name
from agentrl.tasks.shell.verify import verify

MOST_OUTPUT = 16_384
"""Bytes of a command's output that the agent sees."""
TASKS_PER_FAMILY = {"train": 200, "heldout": 20}


class _Action(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Command(_Action):
    """Run a line of bash for at most ``timeout_s`` seconds."""

    command: Annotated[str, Field(min_length=1, max_length=100_000)]
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 30.0


class NewFile(_Action):
    """A text file; a relative path starts in the working directory."""

    path: Annotated[str, Field(min_length=1, max_length=1000)]
    content: Annotated[str, Field(max_length=1_000_000)]


class Writing(_Action):
    """Write a file."""

    write_file: NewFile


class ShellEnvironment(Environment):
    """Generated shell tasks; a subclass names other tasks."""

    provider = Bubblewrap()

    def __init__(self, processes: Processes) -> None:
        super().__init__(processes)
        self._task: HarborTask | None = None
        self._sandboxes: list[Sandbox] = []

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        """Return the tasks of all families whose programs this machine has."""
        limits = SETTINGS.environment.limits
        weight = Weight(limits.memory_mib + limits.disk_mib, limits.cpus)
        return [
            Task(task_name(family, split, number), weight=weight)
            for family in FAMILIES
            if family not in NEEDS or shutil.which(NEEDS[family])
            for split in SPLITS
            for number in range(TASKS_PER_FAMILY[split])
        ]

    def load(self, task: Task) -> HarborTask:
        """Return the task that a lease names."""
        return generate(task.id)

    def spec(self) -> SandboxSpec:
        """Return what the sandboxes of the task are; call it after `reset` has loaded one."""
        assert self._task is not None
        machine = self._task.settings.environment
        return SandboxSpec(limits=machine.limits, image=machine.docker_image)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start a sandbox with the task's files; the seed changes nothing, because a task's id fixes everything."""
        await self.close()
        self._task = self.load(task)
        await self._set_out()
        return Observation(text=self._task.instruction, data={"timeout_s": self._task.settings.agent.timeout_sec})

    async def step(self, action: JsonObject) -> StepResult:
        """Run a command or write a file."""
        sandbox = self._running()
        try:
            if "command" in action:
                return await self._command(sandbox, Command.model_validate(action))
            writing = Writing.model_validate(action)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise InvalidError(
                f'{problems}; send {{"command": LINE}} or {{"write_file": {{"path": PATH, "content": TEXT}}}}',
                code="invalid_action",
            ) from None
        new = writing.write_file
        path = new.path if new.path.startswith("/") else f"{HOME}/{new.path}"
        await sandbox.write_file(path, new.content.encode(errors="replace"))
        return StepResult(observation=Observation(text=f"wrote {new.path}"))

    async def evaluate(self) -> Verdict:
        """Stop the agent's sandbox and judge what it left."""
        sandbox = self._running()
        assert self._task is not None
        return await verify(self._task, sandbox, self._start)

    async def close(self) -> None:
        """Stop all sandboxes."""
        while self._sandboxes:
            await self._sandboxes[-1].stop()
            self._sandboxes.pop()

    async def _set_out(self) -> None:
        """Prepare for the agent, once `reset` has loaded the task."""
        await self._open(self.spec())

    async def _open(self, spec: SandboxSpec) -> Sandbox:
        """Start the agent's sandbox with the task's files."""
        assert self._task is not None
        sandbox = await self._started(spec)
        for path, file in self._task.environment.items():
            await sandbox.write_file(f"{HOME}/{path}", file.data, mode=file.mode)
        return sandbox

    async def _command(self, sandbox: Sandbox, command: Command) -> StepResult:
        result = await sandbox.execute(
            ["bash", "-c", command.command], timeout_s=command.timeout_s, most_output=MOST_OUTPUT
        )
        text = result.output.decode(errors="replace")
        data: JsonObject = {
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
            "cut_bytes": result.cut_bytes,
            "seconds": result.seconds,
        }
        return StepResult(observation=Observation(text=text, data=data))

    def _running(self) -> Sandbox:
        if not self._sandboxes:
            raise InfraError("the episode has no sandbox; reset it first", code="no_sandbox")
        return self._sandboxes[0]

    async def _start(self) -> Sandbox:
        return await self._started(self.spec())

    async def _started(self, spec: SandboxSpec) -> Sandbox:
        assert self.provider is not None
        sandbox = await self.provider.start(spec, self.processes)
        self._sandboxes.append(sandbox)
        return sandbox
