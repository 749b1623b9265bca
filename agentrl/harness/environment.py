"""The environment of agent programs: a task's sandbox with the program in it, one run, and the verdict on what it left.

The one action is ``{"run_agent": {"harness": NAME, "api_key": KEY, "model": MODEL, "timeout_s": S}}``, once after a reset.
Guarantees: only programs that the pool's operator listed are started, and they reach only the operator's gateway, with the
client's key. The key is in no log, error or answer. If the gateway failed the program, or cost it time that was then over, the
run is an `InfraError`, so whatever the program left is never rewarded. Program and sandbox live until the verdict, the door until the run ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.environment import Task, Weight
from agentrl.exceptions import InfraError, InvalidError
from agentrl.harness.interface import GATEWAY_URL, Assignment, Harness
from agentrl.processes import Processes
from agentrl.protocol import JsonObject, Observation, StepResult, Verdict
from agentrl.sandbox.gateway_health import GatewayHealth, Outage
from agentrl.sandbox.interface import Door, ExecResult, Mount, SandboxSpec
from agentrl.sandbox.model_door import model_door
from agentrl.sandbox.streams import door_prefix
from agentrl.tasks.shell.environment import ShellEnvironment

PORT = 30_000
"""Of the model, inside; not one that tasks like to use themselves."""
MAX_OUTPUT = 16_384
"""Characters of the end of a program's output that the client sees."""
HOW = 'send {"run_agent": {"harness": NAME, "api_key": KEY, "model": MODEL, "timeout_s": S}}'


class RunAgent(BaseModel):
    """Which program runs, and what it is told besides the task."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)
    harness: Annotated[str, Field(min_length=1, max_length=100)]
    api_key: Annotated[str, Field(pattern=r"^[!-~]{1,500}$", repr=False)]
    model: Annotated[str, Field(min_length=1, max_length=200)]
    timeout_s: Annotated[float, Field(gt=0, le=7200)]


class Action(BaseModel):
    """The one action."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)
    run_agent: RunAgent


class HarnessEnvironment(ShellEnvironment):
    """The shell tasks; for other tasks, list this class before theirs: ``class Mine(HarnessEnvironment, MyTasks)``."""

    harnesses: ClassVar[Mapping[str, Harness]] = {}
    """What clients may run, by name. The pool's command sets it, and `gateway_url`; see `agentrl.harness.offer`."""
    gateway_url: ClassVar[str] = GATEWAY_URL

    def __init__(self, processes: Processes) -> None:
        super().__init__(processes)
        self._state: Literal["no task", "ready", "running", "ended"] = "no task"
        self._door = AsyncExitStack()

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        """Return the tasks with the weight of the largest program on top."""
        largest = Weight(max((harness.memory_mib for harness in cls.harnesses.values()), default=0))
        return [replace(task, weight=task.weight + largest) for task in super().tasks()]

    async def step(self, action: JsonObject) -> StepResult:
        """Run a program on the task until it ends or its time is over.

        Raises:
            InvalidError: the action makes no sense, its program is not offered, or one has run already.
            InfraError: sandbox, door or gateway failed.
        """
        asked = _read(action)
        harness = self._offered(asked.harness)
        if self._state == "no task":
            raise InfraError("the episode has no task; reset it first", code="no_task")
        if self._state != "ready":
            raise InvalidError("an agent has run on this task; reset it for another run", code="already_ran")
        self._state = "running"
        try:
            result = await self._run(harness, asked)
        except InvalidError as error:
            raise InfraError(f"{harness.name} could not be started: {error}", code="harness_failed") from error
        self._state = "ended"
        text = result.output.decode(errors="replace").replace(asked.api_key, "[api key]")
        data: JsonObject = {
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
            "cut_bytes": result.cut_bytes,
            "seconds": result.seconds,
        }
        seen = Observation(text=text[-MAX_OUTPUT:], data=data)
        return StepResult(observation=seen, done=True, truncated=result.timed_out)

    async def evaluate(self) -> Verdict:
        """Judge what the program left, as the task's own environment does.

        Raises:
            InfraError: no run has ended, or a sandbox failed.
        """
        if self._state != "ended":
            raise InfraError("no agent has run to its end; reset the task and send run_agent", code="not_run")
        return await super().evaluate()

    async def close(self) -> None:
        """Stop all sandboxes, then the door that a run left open."""
        self._state = "no task"
        try:
            await super().close()
        finally:
            await self._door.aclose()

    def _play(self) -> JsonObject:
        """Keep the agent loop away: the program acts, not the client."""
        return {"actions": "run_agent"}

    async def _set_out(self) -> None:
        """Start nothing: the sandbox needs to know the program."""
        self._state = "ready"

    def _offered(self, name: str) -> Harness:
        if (harness := self.harnesses.get(name)) is None:
            offered = ", ".join(sorted(self.harnesses)) or "none"
            raise InvalidError(f"this pool offers no harness {name!r}; it offers {offered}", code="unknown_harness")
        return harness

    async def _run(self, harness: Harness, asked: RunAgent) -> ExecResult:
        """Run a program behind a door of its own.

        Raises:
            InfraError: sandbox or gateway failed.
            InvalidError: the sandbox refused what it was told to start.
        """
        folder = Path(self._door.enter_context(TemporaryDirectory(prefix=door_prefix(self.processes.pool))))
        health = GatewayHealth()
        socket = await self._door.enter_async_context(
            model_door(self.gateway_url, asked.api_key, folder / "door", health)
        )
        sandbox = await self._open(_with(self.spec(), harness, await asyncio.to_thread(harness.mounts), socket))
        assert self._task is not None
        outage = Outage(self.gateway_url, health)
        await outage.begin()
        result = await harness.run(
            sandbox,
            Assignment(
                instruction=self._task.instruction,
                base_url=f"http://127.0.0.1:{PORT}/v1",
                api_key=asked.api_key,
                model=asked.model,
                timeout_s=asked.timeout_s,
            ),
        )
        problem = await outage.problem() if result.timed_out else health.problem
        await self._door.aclose()
        if problem is not None:
            raise InfraError(f"the gateway failed {harness.name}: {problem}", code="gateway_failed")
        return result


def _with(spec: SandboxSpec, harness: Harness, mounts: Sequence[Mount], socket: Path) -> SandboxSpec:
    """Return a sandbox with room for a program, its files, and its way to the model."""
    limits = replace(
        spec.limits,
        memory_mib=spec.limits.memory_mib + harness.memory_mib,
        processes=spec.limits.processes + harness.processes,
    )
    return replace(spec, limits=limits, mounts=[*spec.mounts, *mounts], doors=[Door(PORT, socket)])


def _read(action: JsonObject) -> RunAgent:
    """Return what the client asks for.

    Raises:
        InvalidError: says what to send; without the values that were sent.
    """
    try:
        return Action.model_validate(action).run_agent
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise InvalidError(f"{problems}; {HOW}", code="invalid_action") from None
