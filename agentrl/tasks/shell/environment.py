"""The environment of shell tasks: a sandbox with the task's files, commands in it, and a verdict from outside of it.

The actions are calls of the tools in `agentrl.tasks.shell.tools`, so the agent loop can play it. Each command starts in the
working directory; what it leaves in the background lives on until the verdict. The environment bounds every step itself,
and says how long one may take, so a command that hangs is an observation.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace

from agentrl.environment import Environment, Task, Weight
from agentrl.exceptions import InfraError
from agentrl.processes import Processes
from agentrl.protocol import JsonObject, Observation, StepResult, Verdict
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.interface import HOME, ExecResult, Mount, Sandbox, SandboxSpec
from agentrl.tasks.harbor import HarborTask
from agentrl.tasks.shell.families import FAMILIES, NEEDS
from agentrl.tasks.shell.generate import SETTINGS, SPLITS, generate, task_name
from agentrl.tasks.shell.tools import LONGEST_COMMAND_S, SYSTEM, Bash, read_call, tools
from agentrl.tasks.shell.verify import verify

MOST_OUTPUT = 16_384
"""Bytes of a command's output that the agent sees."""
STEP_S = LONGEST_COMMAND_S + 120
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
            ["bash", "-c", command.command], timeout_s=command.timeout_s, most_output=MOST_OUTPUT
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
