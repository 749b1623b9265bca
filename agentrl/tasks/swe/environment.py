"""The environment of software engineering tasks: commands in a repository, and a verdict by hidden tests in another sandbox.

A step is ``{"code": COMMAND}`` (the block of bash of a reply), or a call of the tool ``bash``. The episode ends with a submission
(`agentrl.tasks.swe.prompts`), with a reply without a call, or as truncated after the last command. Guarantees: neither the solution
nor a hidden test is in the agent's sandbox, in an observation or in a verdict's words but for the names of failed tests. With an
image, the folder in which it has the repository and its history is hidden, and the agent works on a copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from agentrl.environment import Task
from agentrl.exceptions import InvalidError
from agentrl.processes import Processes
from agentrl.protocol import JsonObject, Observation, StepResult, Verdict
from agentrl.sandbox.interface import HOME, Mount, Sandbox, SandboxSpec
from agentrl.tasks.harbor import HarborTask, Machine, Settings
from agentrl.tasks.shell.environment import Bash, ShellEnvironment, openai_tool, read_call_of
from agentrl.tasks.shell.snapshot import UnusableError, put
from agentrl.tasks.swe import prompts
from agentrl.tasks.swe.grade import Graded, begin_git, changes_of, grade
from agentrl.tasks.swe.instance import Instance
from agentrl.tasks.swe.repository import IN_IMAGE, visible_tree, whole_tree
from agentrl.tasks.swe.source import InstanceSource

MARGIN_SECONDS = 120.0
"""Seconds of a step beyond those of its command."""
HOW = "write one block of bash, or call bash with a command"
EMPTY = Path(__file__).parent / "empty"
IMAGE_ENV = {
    "PATH": "/opt/miniconda3/envs/testbed/bin:/opt/miniconda3/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONPATH": f"{HOME}:{HOME}/src:{HOME}/lib",
}
"""Images have their packages in an environment of conda, and the repository installed from `IN_IMAGE`, which is empty here."""


class SweEnvironment(ShellEnvironment):
    """Instances of the variables' source."""

    source: ClassVar[InstanceSource | None] = None
    """Where the instances are from; None: what the variables say."""

    def __init__(self, processes: Processes) -> None:
        super().__init__(processes)
        self._source = self.source or InstanceSource.from_env()
        self._instance: Instance | None = None
        self._whole = self._visible = b""
        self._left = 0
        self.patch = ""
        """Diff of the changes that the verdict is about; empty before it, and without any."""

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        """Return the instances of the source."""
        return (cls.source or InstanceSource.from_env()).tasks()

    def load(self, task: Task) -> HarborTask:
        """Return what the agent may know of a task; the rest is read beside it."""
        instance = self._instance = self._source.load(task.id)
        limits = self._source.limits(task.id)
        machine = Machine(
            docker_image=instance.image if self._in_image else None,
            cpus=limits.cpus,
            memory_mb=limits.memory_mib,
            storage_mb=limits.disk_mib,
            env=instance.variables,
        )
        text = prompts.task_text(
            instance.statement, HOME, self._source.step_limit, blocks=self._source.actions == "code_block"
        )
        return HarborTask(task.id, text, {}, {}, settings=Settings(environment=machine))

    def spec(self) -> SandboxSpec:
        """Return what the sandboxes of the task are."""
        spec = super().spec()
        return image_spec(spec) if spec.image else spec

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start a sandbox with the repository; the seed changes nothing.

        Raises:
            ConfigError: the instance has no repository here.
            InfraError: a sandbox failed.
        """
        self.patch, self._left = "", self._source.step_limit
        return await super().reset(task, seed)

    async def step(self, action: JsonObject) -> StepResult:
        """Run a command, or end the episode.

        Raises:
            InvalidError: the action makes no sense; it says what to write.
            InfraError: the sandbox failed.
        """
        sandbox, command = self._running(), _command_of(action)
        if command is None:
            return StepResult(observation=Observation(text="The task has ended."), done=True)
        if self._left <= 0:
            return StepResult(observation=Observation(text="No commands are left."), truncated=True)
        self._left -= 1
        seconds = min(self._source.command_s, command.timeout_s) if "tool" in action else self._source.command_s
        result = await sandbox.execute(
            ["bash", "-c", command.command], timeout_s=seconds, most_output=2 * prompts.MAX_CHARACTERS
        )
        data: JsonObject = {
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
            "cut_bytes": result.cut_bytes,
            "seconds": result.seconds,
        }
        done = prompts.is_submission(result)
        text = "Submitted." if done else prompts.seen(result, seconds, self._left)
        return StepResult(
            observation=Observation(text=text, data=data), done=done, truncated=not done and self._left <= 0
        )

    async def evaluate(self) -> Verdict:
        """Stop the agent's sandbox and judge what it changed."""
        graded = await self._graded(self._running())
        self.patch = graded.patch
        return graded.verdict

    def _play(self) -> JsonObject:
        seconds = self._source.command_s + MARGIN_SECONDS
        if self._source.actions == "code_block":
            return {"system": prompts.SYSTEM, "actions": "code_block", "step_seconds": seconds}
        return {"system": prompts.TOOL_SYSTEM, "tools": [openai_tool("bash", Bash)], "step_seconds": seconds}

    async def _open(self, spec: SandboxSpec) -> Sandbox:
        """Start the agent's sandbox with the repository, which has one commit."""
        assert self._instance is not None
        self._whole = await whole_tree(self._instance, self._source.folder, self._bare, in_image=spec.image is not None)
        await ShellEnvironment.close(self)  # what read the repository
        self._visible = await asyncio.to_thread(visible_tree, self._instance, self._whole)
        sandbox = await self._started(spec)
        await put(sandbox, self._visible)
        await begin_git(sandbox)
        return sandbox

    async def _graded(self, agents: Sandbox) -> Graded:
        assert self._instance is not None
        try:
            changes = await changes_of(agents, self._visible)
        except UnusableError as error:
            return Graded(Verdict(status="task_failed", score=0.0, detail=str(error)))
        finally:
            await agents.stop()
        return await grade(self._instance, self._whole, changes, self._start, self._source.test_s)

    async def _bare(self, mounts: Sequence[Mount]) -> Sandbox:
        """Start a sandbox that reads an image: its repository is not hidden."""
        return await self._started(replace(super().spec(), mounts=mounts))

    @property
    def _in_image(self) -> bool:
        return self.provider is not None and self.provider.name != "bubblewrap"


def image_spec(spec: SandboxSpec) -> SandboxSpec:
    """Return a sandbox of an image whose repository, and its history, is hidden behind an empty folder."""
    return replace(spec, mounts=[Mount(EMPTY, IN_IMAGE)], env={**IMAGE_ENV, **spec.env})


def _command_of(action: JsonObject) -> Bash | None:
    """Return the command of an action, None if it ends the episode.

    Raises:
        InvalidError: it makes no sense.
    """
    if set(action) != {"code"}:
        return read_call_of(action, {"bash": Bash}, HOW)
    text = action["code"]
    if not isinstance(text, str) or not text.strip():
        raise InvalidError(f"the block has no command; {HOW}", code="invalid_action")
    return Bash(command=text[:100_000])
