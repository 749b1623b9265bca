"""The environment of terminal tasks: persistent shells in a sandbox, on tasks that the variables choose.

As `agentrl.tasks.shell.environment.ShellEnvironment`, with shells that live on between calls, single commands, and files as
tools. A task's ``[agent] timeout_sec`` counts from the reset by the clock: no step begins after it, and no command runs past it.
Then the episode is truncated, and what was reached is judged.

Guarantees: everything runs in the sandbox, where `agentrl.tasks.terminal.session_program` keeps the shells by id. What comes back
is data of the agent's sandbox: it is checked, and an agent that breaks its own sessions gets an `InvalidError`, as for a call that
makes no sense, with what to write. Without a block, or after it, a command goes on in the background.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.environment import Task
from agentrl.exceptions import InvalidError
from agentrl.processes import Processes
from agentrl.protocol import JsonObject, Observation, StepResult
from agentrl.sandbox.interface import HOME, Sandbox
from agentrl.tasks.harbor import HarborTask
from agentrl.tasks.shell.environment import (
    MAX_COMMAND_SECONDS,
    STEP_S,
    Arguments,
    Bash,
    ShellEnvironment,
    openai_tool,
    read_call_of,
)
from agentrl.tasks.terminal.source import TaskSource

FOLDER = "/tmp/.sessions"
MAX_OUTPUT = 16_384
"""Bytes of output that a look shows."""
ANSWER_S = 30.0
"""Beyond the wait: after which a session counts as broken."""
Do = Literal["exec", "view", "write"]
BLOCK_S = 20.0
"""How long a blocking command is waited for by default; then it goes on in the background."""
SYSTEM = (
    "You solve a task in a Linux machine without a network, through tools. Shells keep their folder and variables "
    "between calls; each has an id of your choice and begins in the working directory /work. Carry the task out with "
    "the tools, and check the result. A reply without a tool call ends the task."
)
HOW = (
    "call shell_exec with an id and a command, shell_view, shell_write_to_process, shell_write_content_to_file, or bash; "
    "a reply without a tool call ends the task"
)
Id = Annotated[str, Field(min_length=1, max_length=64, description="name of the shell, such as main")]
VIEW_S, WRITE_S, BEGIN_S = 1.0, 5.0, 0.2
"""Most seconds that a look, a write and a command in the background wait for output."""
PROBLEMS = {
    "busy": "a command still runs in this shell; look with shell_view, or use another id",
    "idle": "nothing runs in this shell; use shell_exec",
    "no session": "there is no shell of this id; shell_exec starts one",
    "it reads too slowly": "the program does not read its input; look with shell_view",
}


class Seen(BaseModel):
    """What a session answered.

    Attributes:
        output: since the last look.
        cut: bytes left out in its middle.
        running: whether a command runs.
        status: of the last command that ended; of the shell, if that ended.
        ended: whether the shell has ended.
        error: why nothing was done.
    """

    model_config = ConfigDict(strict=True, frozen=True)
    output: Annotated[str, Field(max_length=2 * MAX_OUTPUT)] = ""
    cut: int = 0
    running: bool = False
    status: int | None = None
    ended: bool = False
    error: str = ""


async def call(sandbox: Sandbox, session: str, do: Do, text: str, wait_s: float) -> Seen:
    """Do something in a session, and return what is seen after at most ``wait_s``, or earlier if its command ended.

    Raises:
        InvalidError: the session's process gives no answer; the agent has damaged it.
        InfraError: the sandbox is gone.
    """
    request = {"id": session, "do": do, "text": text, "wait_s": wait_s, "most": MAX_OUTPUT}
    result = await sandbox.execute(
        ["python3", "-I", "-c", _program(), FOLDER, HOME],
        timeout_s=wait_s + ANSWER_S,
        stdin=json.dumps(request).encode(),
        most_output=16 * MAX_OUTPUT,
    )
    try:
        return Seen.model_validate_json(result.output)
    except ValidationError:
        raise InvalidError(
            f"session {session!r} does not answer; use another id, or bash", code="session_broken"
        ) from None


@cache
def _program() -> str:
    return (Path(__file__).parent / "session_program.py").read_text()


class ShellExec(Arguments):
    """Run a command in a persistent shell, which is started if there is none of this id."""

    id: Id
    command: Annotated[str, Field(min_length=1, max_length=100_000, description="the command line")]
    block: Annotated[
        bool, Field(description="whether to wait for its end; otherwise it runs in the background. Default true")
    ] = True
    timeout_s: Annotated[
        float,
        Field(gt=0, le=MAX_COMMAND_SECONDS, description="most seconds to wait; then it goes on. Default 20"),
    ] = BLOCK_S


class ShellView(Arguments):
    """Show what a shell printed since the last look, and whether its command still runs."""

    id: Id


class ShellWrite(Arguments):
    """Write a line to the program that runs in a shell; ^C interrupts it."""

    id: Id
    command: Annotated[str, Field(max_length=4000, description="the line, or ^C")]


class ShellFile(Arguments):
    """Write a text file, and the folders above it."""

    content: Annotated[str, Field(max_length=1_000_000, description="the whole text of the file")]
    file_path: Annotated[
        str, Field(min_length=1, max_length=1000, description="below /work or /tmp; a relative one is below /work")
    ]


Call = Bash | ShellExec | ShellView | ShellWrite | ShellFile
CALLS: Mapping[str, type[Call]] = MappingProxyType(
    {
        "shell_exec": ShellExec,
        "shell_view": ShellView,
        "shell_write_to_process": ShellWrite,
        "shell_write_content_to_file": ShellFile,
        "bash": Bash,
    }
)


def tools() -> list[JsonObject]:
    """Return the tools in OpenAI's format."""
    return [openai_tool(name, kind) for name, kind in CALLS.items()]


def read_call(action: JsonObject) -> Call | None:
    """Return the call of an action; see `agentrl.tasks.shell.environment.read_call_of`."""
    return read_call_of(action, CALLS, HOW)


def shown(seen: Seen) -> str:
    """Return what the agent sees of a shell: its output, and notes in brackets."""
    notes = [f"[{seen.cut} bytes in the middle of the output are left out]"] if seen.cut else []
    if seen.running:
        notes.append("[still running; shell_view shows more, and ^C by shell_write_to_process interrupts it]")
    elif seen.ended:
        notes.append(f"[the shell has ended with status {seen.status}; the next shell_exec starts a new one]")
    elif seen.status or not seen.output:
        notes.append(f"[exit code {seen.status}]")
    return "\n".join([*filter(None, [seen.output.removesuffix("\n")]), *notes]) if notes else seen.output


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
