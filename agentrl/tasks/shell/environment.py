"""The environment of shell tasks: a sandbox with the task's files, commands in it, and a verdict from outside of it.

An action is a call of one of two tools, ``{"tool": NAME, "arguments": {...}}``, so the agent loop can play it, or
``{"text": TEXT}``: a reply without a call, which ends the episode. A call that makes no sense is an `InvalidError` whose text tells
the agent what to write. Each command starts in the working directory; what it leaves in the background lives on until the verdict.
The environment bounds every step itself, and says how long one may take, so a command that hangs is an observation.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.environment import Environment, Task, Weight
from agentrl.exceptions import InfraError, InvalidError
from agentrl.processes import Processes
from agentrl.protocol import JsonObject, Observation, StepResult, Verdict
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.interface import HOME, ExecResult, Mount, Sandbox, SandboxSpec
from agentrl.tasks.harbor import HarborTask
from agentrl.tasks.names import SPLITS
from agentrl.tasks.shell.families import FAMILIES, NEEDS
from agentrl.tasks.shell.generate import SETTINGS, generate, task_name
from agentrl.tasks.shell.verify import verify

MAX_COMMAND_SECONDS = 600
SYSTEM = (
    "You solve a task in a Linux machine without a network, through the tools bash and write_file. Every command starts "
    "in the working directory /work. Carry the task out with the tools, and check the result. A reply without a tool "
    "call ends the task."
)
HOW = "call bash with a command, or write_file with a path and content; a reply without a tool call ends the task"


class Arguments(BaseModel):
    """Arguments of a tool; anything else is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)


class Bash(Arguments):
    """Run a command line with bash. You see its output and its exit code."""

    command: Annotated[str, Field(min_length=1, max_length=100_000, description="the command line")]
    timeout_s: Annotated[
        float, Field(gt=0, le=MAX_COMMAND_SECONDS, description=f"most seconds, up to {MAX_COMMAND_SECONDS}; default 30")
    ] = 30.0


class WriteFile(Arguments):
    """Write a text file, and the folders above it."""

    path: Annotated[
        str, Field(min_length=1, max_length=1000, description="below /work or /tmp; a relative one is below /work")
    ]
    content: Annotated[str, Field(max_length=1_000_000, description="the whole text of the file")]


Call = Bash | WriteFile
CALLS: Mapping[str, type[Call]] = MappingProxyType({"bash": Bash, "write_file": WriteFile})


def tools() -> list[JsonObject]:
    """Return the tools in OpenAI's format."""
    return [openai_tool(name, kind) for name, kind in CALLS.items()]


T = TypeVar("T", bound=BaseModel)


def read_call(action: JsonObject) -> Call | None:
    """Return the call of an action; see `read_call_of`."""
    return read_call_of(action, CALLS, HOW)


def read_call_of(action: JsonObject, calls: Mapping[str, type[T]], how: str) -> T | None:
    """Return the call of an action, or None if the agent says that it has ended.

    Args:
        action: of the agent.
        calls: arguments of each tool.
        how: ends an error: what to write.

    Raises:
        InvalidError: the tool is unknown or an argument is wrong; it says what to write.
    """
    if set(action) == {"text"}:
        return None
    name, arguments = action.get("tool"), action.get("arguments")
    if set(action) != {"tool", "arguments"} or not isinstance(name, str):
        raise InvalidError(f'an action is {{"tool": NAME, "arguments": {{...}}}}; {how}', code="invalid_action")
    if (kind := calls.get(name)) is None:
        raise InvalidError(f"there is no tool {name!r}; {how}", code="unknown_tool")
    try:
        return kind.model_validate(arguments)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'it'}: {item['msg']}" for item in error.errors())
        raise InvalidError(f"the arguments of {name} are wrong: {problems}; {how}", code="invalid_arguments") from None


def openai_tool(name: str, kind: type[BaseModel]) -> JsonObject:
    """Return a tool in OpenAI's format, with what a model needs of its arguments' schema.

    Args:
        name: of the tool.
        kind: its arguments, each with a plain type and a description; its docstring describes the tool.
    """
    schema = kind.model_json_schema()
    properties: JsonObject = {
        item: {"type": result["type"], "description": result["description"]}
        for item, result in schema["properties"].items()
    }
    parameters: JsonObject = {"type": "object", "properties": properties, "required": schema["required"]}
    return {
        "type": "function",
        "function": {"name": name, "description": kind.__doc__, "parameters": parameters},
    }


MAX_OUTPUT = 16_384
"""Bytes of a command's output that the agent sees."""
STEP_S = MAX_COMMAND_SECONDS + 120
"""After which a sandbox that still owes an answer has failed."""
TASKS_PER_FAMILY = {"train": 200, "heldout": 20}


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
        return SandboxSpec(limits=machine.limits, env=machine.env, image=machine.docker_image)

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start a sandbox with the task's files; the seed changes nothing, because a task's id fixes everything."""
        await self.close()
        self._task = self.load(task)
        self._check(task.id, self._task)
        await self._set_out()
        data: JsonObject = {"timeout_s": self._task.settings.agent.timeout_sec, **self._play()}
        return Observation(text=self._task.instruction, data=data)

    async def step(self, action: JsonObject) -> StepResult:
        """Run a command, write a file, or end the episode.

        Raises:
            InvalidError: the call makes no sense; it says what to write.
            InfraError: the sandbox failed.
        """
        sandbox = self._running()
        call = read_call(action)
        if call is None:
            return StepResult(observation=Observation(text="The task has ended."), done=True)
        if isinstance(call, Bash):
            return await self._command(sandbox, call)
        return await self._write(sandbox, call.path, call.content)

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

    def _play(self) -> JsonObject:
        """Return what the agent loop needs to know; see `agentrl.rollout.actions`."""
        return {"system": SYSTEM, "tools": list(tools()), "step_seconds": STEP_S}

    def _check(self, task_id: str, task: HarborTask) -> None:
        """Refuse a task that the pool's sandboxes cannot hold; a subclass may."""

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

    async def _write(self, sandbox: Sandbox, path: str, content: str) -> StepResult:
        whole = path if path.startswith("/") else f"{HOME}/{path}"
        await sandbox.write_file(whole, content.encode(errors="replace"))
        return StepResult(observation=Observation(text=f"wrote {path}"))

    async def _command(self, sandbox: Sandbox, command: Bash) -> StepResult:
        result = await sandbox.execute(
            ["bash", "-c", command.command], timeout_s=command.timeout_s, most_output=MAX_OUTPUT
        )
        data: JsonObject = {
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
            "cut_bytes": result.cut_bytes,
            "seconds": result.seconds,
        }
        return StepResult(observation=Observation(text=_seen(result, command.timeout_s), data=data))

    def _running(self) -> Sandbox:
        if not self._sandboxes:
            raise InfraError("the episode has no sandbox; reset it first", code="no_sandbox")
        return self._sandboxes[0]

    async def _start(self, mounts: Sequence[Mount]) -> Sandbox:
        spec = self.spec()
        return await self._started(replace(spec, mounts=[*spec.mounts, *mounts]))

    async def _started(self, spec: SandboxSpec) -> Sandbox:
        assert self.provider is not None
        sandbox = await self.provider.start(spec, self.processes)
        self._sandboxes.append(sandbox)
        return sandbox


def _seen(result: ExecResult, timeout_s: float) -> str:
    """Return a command's output, and lines in brackets about what the output does not show."""
    notes: list[str] = []
    if result.cut_bytes:
        notes.append(f"[{result.cut_bytes} bytes in the middle of the output are left out]")
    if result.timed_out:
        notes.append(f"[ended after {timeout_s:g} s, with everything that it had started]")
    elif result.exit_code or not result.output:
        notes.append(f"[exit code {result.exit_code}]")
    text = result.output.decode(errors="replace")
    return "\n".join([*filter(None, [text.removesuffix("\n")]), *notes]) if notes else text
