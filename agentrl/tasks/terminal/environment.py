"""The environment of terminal tasks: persistent shells in a sandbox, on tasks that the variables choose.

As `agentrl.tasks.shell.environment.ShellEnvironment`, with the tools of `agentrl.tasks.terminal.tools`. A task's
``[agent] timeout_sec`` counts from the reset by the clock: no step begins after it, and no command runs past it. Then the
episode is truncated, and what was reached is judged.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from agentrl.environment import Task
from agentrl.exceptions import InvalidError
from agentrl.processes import Processes
from agentrl.protocol import JsonObject, Observation, StepResult
from agentrl.sandbox.interface import Sandbox
from agentrl.tasks.harbor import HarborTask
from agentrl.tasks.shell.environment import STEP_S, ShellEnvironment
from agentrl.tasks.shell.tools import Bash
from agentrl.tasks.terminal.sessions import Do, call
from agentrl.tasks.terminal.source import TaskSource
from agentrl.tasks.terminal.tools import (
    SYSTEM,
    Call,
    ShellExec,
    ShellFile,
    ShellWrite,
    read_call,
    shown,
    tools,
)

VIEW_S, WRITE_S, BEGIN_S = 1.0, 5.0, 0.2
"""Most seconds that a look, a write and a command in the background wait for output."""
PROBLEMS = {
    "busy": "a command still runs in this shell; look with shell_view, or use another id",
    "idle": "nothing runs in this shell; use shell_exec",
    "no session": "there is no shell of this id; shell_exec starts one",
    "it reads too slowly": "the program does not read its input; look with shell_view",
}


class TerminalEnvironment(ShellEnvironment):
    """Tasks of the variables' source, in a terminal."""

    def __init__(self, processes: Processes) -> None:
        super().__init__(processes)
        self._until = 0.0

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        """Return the tasks of the source."""
        return TaskSource.from_env().tasks()

    def load(self, task: Task) -> HarborTask:
        """Return the task that a lease names."""
        return TaskSource.from_env().load(task.id)

    async def reset(self, task: Task, seed: int) -> Observation:
        """See `ShellEnvironment.reset`.

        Raises:
            InvalidError: the task needs an image, and the pool's sandboxes have none.
        """
        seen = await super().reset(task, seed)
        assert self._task is not None
        self._until = time.monotonic() + self._task.settings.agent.timeout_sec
        return seen

    def _check(self, task_id: str, task: HarborTask) -> None:
        image = task.settings.environment.docker_image
        if image and self.provider is not None and self.provider.name == "bubblewrap":
            raise InvalidError(
                f"task {task_id} needs the image {image}; start the pool with --sandbox docker --sandbox-image {image}",
                code="needs_image",
            )

    async def step(self, action: JsonObject) -> StepResult:
        """Carry out a call, or end the episode.

        Raises:
            InvalidError: the call makes no sense; it says what to write.
            InfraError: the sandbox failed.
        """
        sandbox = self._running()
        wanted = read_call(action)
        if wanted is None:
            return StepResult(observation=Observation(text="The task has ended."), done=True)
        left = self._until - time.monotonic()
        if left <= 0:
            return StepResult(observation=Observation(text="The time of the task is over."), truncated=True)
        return await self._carried_out(sandbox, wanted, left)

    async def _carried_out(self, sandbox: Sandbox, wanted: Call, left: float) -> StepResult:
        if isinstance(wanted, Bash):
            return await self._command(sandbox, wanted.model_copy(update={"timeout_s": min(wanted.timeout_s, left)}))
        if isinstance(wanted, ShellFile):
            return await self._write(sandbox, wanted.file_path, wanted.content)
        do: Do
        if isinstance(wanted, ShellExec):
            do, text, wait_s = "exec", wanted.command, wanted.timeout_s if wanted.block else BEGIN_S
        elif isinstance(wanted, ShellWrite):
            do, text, wait_s = "write", wanted.command, WRITE_S
        else:
            do, text, wait_s = "view", "", VIEW_S
        seen = await call(sandbox, wanted.id, do, text, min(wait_s, left))
        if seen.error:
            raise InvalidError(PROBLEMS.get(seen.error, seen.error[:200]), code="session")
        data: JsonObject = {"exit_code": None if seen.running else seen.status, "running": seen.running}
        return StepResult(observation=Observation(text=shown(seen), data={**data, "cut_bytes": seen.cut}))

    def _play(self) -> JsonObject:
        return {"system": SYSTEM, "tools": list(tools()), "step_seconds": STEP_S}
