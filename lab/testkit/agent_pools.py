"""A pool whose environments follow a script, with a clock that a test sets, and what a test asks it for.

Environments that do what a test says: a `Script` in this process, or the task's data in a pool of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from agentrl.client import new_request_id
from agentrl.environment import Environment, Task, Weight
from agentrl.exceptions import InfraError, InvalidError
from agentrl.leases.lease import CloseTimeouts
from agentrl.leases.pool import Pool
from agentrl.processes import ProcessLedger
from agentrl.protocol import (
    EvaluateRequest,
    JsonObject,
    LeaseRequest,
    LeaseService,
    Observation,
    RenewRequest,
    ResetRequest,
    StepRequest,
    StepResult,
    Verdict,
)

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


QUICK = CloseTimeouts(close_s=5.0, cancel_grace_s=0.3, retry_s=0.01, longest_retry_s=0.02)
PATIENT_S = 20.0
ADDRESS = "http://127.0.0.1"


async def until(condition: Callable[[], Any]) -> None:
    """Wait for a condition; a busy machine may take its time."""
    async with asyncio.timeout(PATIENT_S):
        while not condition():
            await asyncio.sleep(0.002)


def asked(task_id: str = "plain", **settings: Any) -> LeaseRequest:
    return LeaseRequest(request_id=new_request_id(), task_id=task_id, **settings)


def resetting(seq: int = 1, **settings: Any) -> ResetRequest:
    return ResetRequest(request_id=new_request_id(), seq=seq, **settings)


def acting(seq: int, do: str, **settings: Any) -> StepRequest:
    return StepRequest(request_id=new_request_id(), seq=seq, action={"do": do}, **settings)


def judging(**settings: Any) -> EvaluateRequest:
    return EvaluateRequest(request_id=new_request_id(), **settings)


def renewing(ttl_s: float) -> RenewRequest:
    return RenewRequest(request_id=new_request_id(), ttl_s=ttl_s)


class Clock:
    """A clock that stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class CutTransport(httpx.AsyncBaseTransport):
    """Cuts connections: ``before`` or ``after`` the server carries the request out, in this order, then no more."""

    inner: httpx.AsyncBaseTransport
    cuts: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        cut = self.cuts.pop(0) if self.cuts else ""
        self.seen.append(f"{request.method} {request.url.path.rsplit('/', 1)[-1]}")
        if cut == "refused":
            raise httpx.ConnectError("refused")
        if cut == "before":
            raise httpx.WriteError("cut before")
        response = await self.inner.handle_async_request(request)
        if cut == "after":
            await response.aread()
            raise httpx.ReadError("cut after")
        return response


@dataclass
class World:
    """A started pool, and what surrounds it."""

    pool: Pool
    script: Script
    clock: Clock
    registry: CollectorRegistry
    ledger: ProcessLedger
    client: LeaseService
    transport: CutTransport

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    async def leased(self, **settings: Any) -> str:
        """Return the id of a new lease whose task was reset."""
        lease = await self.client.lease(asked(**settings))
        await self.client.reset(lease.lease_id, resetting())
        return lease.lease_id


Build = Callable[..., Coroutine[Any, Any, World]]
