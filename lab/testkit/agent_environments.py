"""Environments that do what a test says: a `Script` in this process, or the task's data in a pool of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from agentrl.environment import Environment, Task, Weight
from agentrl.exceptions import InfraError, InvalidError
from agentrl.protocol import JsonObject, Observation, StepResult, Verdict

PASSED = Verdict(status="ok", score=1.0, passed=2, total=2)
MINIMAL = {"PATH": os.defpath}


@dataclass
class Script:
    """What the environments of a test do, and what they were asked to do.

    Attributes:
        calls: operations in the order in which they began, with the action of a step.
        gate: operations with the action ``wait`` and evaluations wait for it.
        thread_gate: threads of the action ``block`` wait for it.
        closing: closes wait for it.
        failing_closes: how many more closes raise.
        deaf_closes: whether closes ignore their cancellation.
        unmakable: whether the constructor raises.
        most_alive: environments that existed at a time.
        evaluation: the verdict, or what evaluations raise.
    """

    calls: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    thread_gate: threading.Event = field(default_factory=threading.Event)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    failing_closes: int = 0
    deaf_closes: bool = False
    unmakable: bool = False
    alive: int = 0
    most_alive: int = 0
    evaluation: Verdict | Exception = PASSED
    evaluation_waits: bool = False
    tasks: tuple[Task, ...] = (
        Task("plain"),
        Task("heavy", weight=Weight(900, 1.0)),
        Task("light", weight=Weight(100, 0.25)),
        Task("huge", weight=Weight(2000, 1.0)),
        Task("unmakable", {"fails": True}),
    )

    def __post_init__(self) -> None:
        self.closing.set()

    def count(self, name: str) -> int:
        """Return how often an operation began."""
        return self.calls.count(name)

    def environment(self) -> type[Environment]:
        """Return the environment class that follows this script."""
        return type("Scripted", (ScriptedEnvironment,), {"script": self})


class ScriptedEnvironment(Environment):
    """Follows `script`, which a subclass sets."""

    script: Script

    def __init__(self, processes: object) -> None:
        super().__init__(processes)  # pyright: ignore[reportArgumentType]
        if self.script.unmakable:
            raise OSError("no such device")
        self.steps = 0
        self.script.alive += 1
        self.script.most_alive = max(self.script.most_alive, self.script.alive)

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        return cls.script.tasks

    async def reset(self, task: Task, seed: int) -> Observation:
        self.script.calls.append("reset")
        if task.data.get("fails"):
            raise InfraError("the image is missing", code="no_image")
        return Observation(text=f"{task.id} {seed}")

    async def step(self, action: JsonObject) -> StepResult:
        do = str(action.get("do", ""))
        self.script.calls.append(do)
        self.steps += 1
        if do == "wait":
            try:
                await self.script.gate.wait()
            except asyncio.CancelledError:
                for _ in range(10):  # its end takes a few rounds of the event loop
                    await asyncio.sleep(0)
                self.script.calls.append("cancelled")
                raise
        elif do == "block":
            await self.blocking(self.script.thread_gate.wait)
        elif do == "ignore cancellation":
            while not self.script.gate.is_set():
                with suppress(asyncio.CancelledError):
                    await self.script.gate.wait()
        elif do == "raise":
            raise ZeroDivisionError("a defect")
        elif do == "infra":
            raise InfraError("the container is gone", code="no_container")
        elif do == "invalid":
            raise InvalidError("no such button; use OK", code="invalid_action")
        elif do == "exit":
            raise SystemExit(3)
        elif do == "cancel":
            raise asyncio.CancelledError
        elif do == "nothing":
            return None  # pyright: ignore[reportReturnType]
        elif do == "spawn":
            process = await self.processes.spawn(["sleep", "600"], env=MINIMAL)
            return StepResult(observation=Observation(data={"pid": process.pid}))
        return StepResult(observation=Observation(text=f"{self.steps}: {do}"), done=do == "finish")

    async def evaluate(self) -> Verdict:
        self.script.calls.append("evaluate")
        if self.script.evaluation_waits:
            await self.script.gate.wait()
        if isinstance(self.script.evaluation, Exception):
            raise self.script.evaluation
        return self.script.evaluation

    async def close(self) -> None:
        self.script.calls.append("close")
        while self.script.deaf_closes and not self.script.closing.is_set():
            with suppress(asyncio.CancelledError):
                await self.script.closing.wait()
        await self.script.closing.wait()
        if self.script.failing_closes:
            self.script.failing_closes -= 1
            raise OSError("the container does not answer")
        self.script.alive -= 1


class SleepingEnvironment(Environment):
    """Owns a `sleep` with a child of its own from `reset` on; for a server that is killed."""

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        return [Task("sleep")]

    async def reset(self, task: Task, seed: int) -> Observation:
        program = "setsid sleep 601 & echo $$ $!; exec sleep 602"
        process = await self.processes.spawn(["sh", "-c", program], env=MINIMAL, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        pids = (await process.stdout.readline()).split()
        return Observation(data={"pids": [int(pid) for pid in pids]})

    async def step(self, action: JsonObject) -> StepResult:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if action.get("do") != "ignore cancellation":
                    raise

    async def evaluate(self) -> Verdict:
        return Verdict(status="task_failed", score=0.0)

    async def close(self) -> None:
        return None
