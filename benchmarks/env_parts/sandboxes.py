"""Start of a sandbox, and a call in it, beside a plain subprocess, which is the limit.

The measured pools lend out environments with nothing but the protocol, a program per step, or a look into the server itself.
`Watch` and `Inside` run inside the pool's process, so `Watch` sees the gaps of the event loop that all environments share.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentrl.environment import Environment, Task
from agentrl.exceptions import InfraError
from agentrl.processes import Processes, ProcessLedger
from agentrl.protocol import JsonObject, Observation, StepResult, Verdict
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.interface import SandboxSpec
from benchmarks.env_parts.servers import RUN_VARIABLE
from benchmarks.env_parts.statistics import milliseconds

PASSED = Verdict(status="ok", score=1.0)
MINIMAL = {"PATH": os.defpath, **{name: os.environ[name] for name in (RUN_VARIABLE,) if name in os.environ}}
"""Of programs; it says which run they belong to."""
TICK_SECONDS = 0.001


class Trivial(Environment):
    """Answers at once: what is left is the cost of lending."""

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        """Return one task."""
        return [Task("trivial")]

    async def reset(self, task: Task, seed: int) -> Observation:
        """Say that it is ready."""
        return Observation(text="ready")

    async def step(self, action: JsonObject) -> StepResult:
        """Say what was done."""
        return StepResult(observation=Observation(text=f"did {action}"))

    async def evaluate(self) -> Verdict:
        """Pass."""
        return PASSED

    async def close(self) -> None:
        """Hold nothing."""


class Program(Trivial):
    """Runs a shell line per step in a process of its own, without a sandbox, and keeps a program in the background."""

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        """Return a task with a background program, and one without."""
        return [Task("program"), Task("background", {"background": True})]

    async def reset(self, task: Task, seed: int) -> Observation:
        """Start the background program, if the task has one, with a child that leaves its process group."""
        if task.data.get("background"):
            line = "setsid sleep 3600 & exec sleep 3601"
            await self.processes.spawn(["sh", "-c", line], env=MINIMAL)
        return Observation(text="ready")

    async def step(self, action: JsonObject) -> StepResult:
        """Run the action's ``line`` to its end, and return its output."""
        line = str(action["line"])
        process = await self.processes.spawn(["sh", "-c", line], env=MINIMAL, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        if process.returncode:
            raise InfraError(f"{line!r} ended with status {process.returncode}", code="program_failed")
        return StepResult(observation=Observation(text=output.decode()))


class Watch(Trivial):
    """Notes the longest gap between two ticks of the server's event loop, from `reset` to the step that reads it."""

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        """Return one task."""
        return [Task("watch")]

    async def reset(self, task: Task, seed: int) -> Observation:
        """Begin to tick."""
        self.gaps: list[float] = []
        self.ticking = asyncio.create_task(self._tick())
        return Observation(data={"pid": os.getpid()})

    async def step(self, action: JsonObject) -> StepResult:
        """Return the gaps since the last look: the longest, in milliseconds, and the number of ticks."""
        gaps, self.gaps = self.gaps, []
        longest = max(gaps, default=0.0)
        found: JsonObject = {"longest_gap_ms": longest * 1e3, "ticks": len(gaps)}
        return StepResult(observation=Observation(data=found))

    async def close(self) -> None:
        """Stop to tick."""
        if (ticking := getattr(self, "ticking", None)) is not None:
            ticking.cancel()

    async def _tick(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.perf_counter()
            self.gaps.append(now - last - TICK_SECONDS)
            last = now


class Inside(Trivial):
    """Says what the server's process holds in memory."""

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        """Return one task."""
        return [Task("inside")]

    async def step(self, action: JsonObject) -> StepResult:
        """Collect the garbage, and return Python's memory blocks and the tasks of the event loop."""
        gc.collect()
        found: JsonObject = {"blocks": sys.getallocatedblocks(), "tasks": len(asyncio.all_tasks())}
        return StepResult(observation=Observation(data=found))


CALL_SECONDS = 60.0


async def plain_call() -> float:
    """Return the seconds of a plain subprocess."""
    begun = time.perf_counter()
    process = await asyncio.create_subprocess_exec("true", env=MINIMAL)
    await process.wait()
    return time.perf_counter() - begun


async def sandbox_figures(folder: Path, count: int) -> dict[str, Any]:
    """Start ``count`` sandboxes, one after the other, with a call in each; return the times.

    Raises:
        InfraError: this machine cannot isolate, with what to do about it.
    """
    provider, ledger = Bubblewrap(), ProcessLedger(folder / "sandbox.sqlite")
    plain, starts, calls, stops = [await plain_call() for _ in range(count)], [], [], []
    begun = time.perf_counter()
    await provider.check()
    check_s = time.perf_counter() - begun
    try:
        for _ in range(count):
            processes = Processes(ledger)
            times = [time.perf_counter()]
            sandbox = await provider.start(SandboxSpec(), processes)
            times.append(time.perf_counter())
            await sandbox.execute(["true"], timeout_s=CALL_SECONDS)
            times.append(time.perf_counter())
            await sandbox.stop()
            await processes.end()
            times.append(time.perf_counter())
            for figures, first, last in zip((starts, calls, stops), times, times[1:], strict=False):
                figures.append(last - first)
    finally:
        ledger.close()
    return {
        "provider": provider.name,
        "weaker": provider.weaker(),
        "check_s": round(check_s, 2),
        "start_ms": milliseconds(starts),
        "call_ms": milliseconds(calls),
        "stop_ms": milliseconds(stops),
        "plain_ms": milliseconds(plain),
    }
