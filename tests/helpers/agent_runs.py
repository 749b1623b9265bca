"""A driver's world: a pool whose agent programs do what a test says, and transports that a test cuts or points elsewhere."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry
from rich.console import Console

from agentrl.client import HttpLeases
from agentrl.environment import Environment, Registry, Task, Weight
from agentrl.exceptions import InvalidError
from agentrl.harness.driver import Driver, Plan
from agentrl.harness.gateway import EpisodeGateway
from agentrl.harness.progress import ProgressDisplay
from agentrl.harness.records import Records, schedule_of
from agentrl.harness.run import Agent, AgentRuns
from agentrl.leases.metrics import PoolMetrics
from agentrl.leases.pool import Capacity, Pool
from agentrl.processes import ProcessLedger
from agentrl.protocol import JsonObject, Observation, StepResult, Verdict
from agentrl.web.app import create_app
from lab.testkit.agent_pools import ADDRESS, QUICK, CutTransport

SOLVED = Verdict(status="ok", score=1.0)
FAILED = Verdict(status="task_failed", score=0.0)
TASKS = ("easy", "hard")
AGENT = Agent(harness="stand-in", model="policy", timeout_s=None, reward="binary")


@dataclass
class Runs:
    """What agent programs do, and what they did.

    Attributes:
        ends: what becomes of the next runs: a verdict, or an exception of the program's step; then `SOLVED` and `FAILED` in turn.
        ask: what a program asks the gateway, given the key of its episode.
        gate: programs wait for it.
        keys: of the programs that were started.
        most: programs that ran at a time.
    """

    ends: list[Verdict | Exception] = field(default_factory=list)
    ask: Callable[[str], Any] | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    keys: list[str] = field(default_factory=list)
    actions: list[dict[str, Any]] = field(default_factory=list)
    running: int = 0
    most: int = 0
    resets: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    def environment(self) -> type[Environment]:
        return type("AgentRuns", (AgentEnvironment,), {"runs": self})


class AgentEnvironment(Environment):
    """Follows `runs`, which a subclass sets."""

    runs: Runs
    verdict: Verdict = SOLVED

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        return [*map(Task, TASKS), Task("huge", weight=Weight(5000, 1.0))]

    async def reset(self, task: Task, seed: int) -> Observation:
        self.runs.resets.append(task.id)
        return Observation(text="Do it.", data={"timeout_s": 50.0})

    async def step(self, action: JsonObject) -> StepResult:
        asked = action["run_agent"]
        assert isinstance(asked, dict)
        if asked["harness"] != "stand-in":
            raise InvalidError(f"this pool offers no harness {asked['harness']!r}", code="unknown_harness")
        runs, key = self.runs, str(asked["api_key"])
        runs.keys.append(key)
        runs.actions.append(asked)
        end = runs.ends.pop(0) if runs.ends else (SOLVED, FAILED)[len(runs.keys) % 2]
        runs.running += 1
        runs.most = max(runs.most, runs.running)
        try:
            if runs.ask is not None:
                await runs.ask(key)
            await runs.gate.wait()
        finally:
            runs.running -= 1
        if isinstance(end, Exception):
            raise end
        self.verdict = end
        return StepResult(observation=Observation(), done=True, truncated=end.status == "timeout")

    async def evaluate(self) -> Verdict:
        return self.verdict

    async def close(self) -> None:
        return None


@dataclass
class AgentPool:
    """A started pool, and how its clients reach it."""

    pool: Pool
    runs: Runs
    ledger: ProcessLedger
    app: Any

    @property
    def transport(self) -> httpx.AsyncBaseTransport:
        return httpx.ASGITransport(self.app, raise_app_exceptions=False)


async def start_pool(runs: Runs, ledger: Path, *, slots: int = 4, key: str | None = None) -> AgentPool:
    """Start a pool that runs the programs of ``runs``."""
    registry, processes = CollectorRegistry(), ProcessLedger(ledger)
    pool = Pool(
        Registry([runs.environment()]),
        Capacity(slots, Weight(1000, 8.0)),
        processes,
        PoolMetrics(registry),
        timeouts=QUICK,
    )
    await pool.start()
    return AgentPool(pool, runs, processes, create_app(pool, registry, key=key, most_body_bytes=10_000))


@dataclass
class Elsewhere(httpx.AsyncBaseTransport):
    """Sends requests to the server that is there now; without one, connections are refused."""

    url: str | None
    inner: httpx.AsyncBaseTransport = field(default_factory=httpx.AsyncHTTPTransport)
    refused: int = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.url is None:
            self.refused += 1
            raise httpx.ConnectError("refused")
        there = httpx.URL(self.url)
        request.url = request.url.copy_with(host=there.host, port=there.port)
        request.headers["host"] = f"{there.host}:{there.port}"
        return await self.inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self.inner.aclose()


@dataclass
class Drive:
    """One driver in this process, with what it printed.

    Attributes:
        pool: how it reaches the pool; a test replaces ``inner`` by another pool's, or cuts.
        gateway: how it reaches the gateway.
        text: what it printed.
    """

    pool: CutTransport
    gateway: CutTransport
    text: io.StringIO = field(default_factory=io.StringIO)
    display: ProgressDisplay = field(init=False)

    def __post_init__(self) -> None:
        self.display = ProgressDisplay(Console(file=self.text, width=200), None)

    @property
    def said(self) -> str:
        return self.text.getvalue()

    async def run(
        self, *, tasks: Sequence[str] = TASKS, records: Path | None = None, agent: Agent = AGENT, **changes: Any
    ) -> None:
        """Drive; pauses are short, and servers may be away for long."""
        settings: dict[str, Any] = {
            "group_size": 2,
            "parallel": 4,
            "groups": 2,
            "tries": 3,
            "most_ready": 100,
            "seed": 0,
        }
        plan = Plan(tasks=tasks, metadata={"harness": agent.harness}, **{**settings, **changes})
        kept = Records(records, schedule_of(tasks, agent.harness, plan.group_size, plan.seed))
        async with (
            HttpLeases(ADDRESS, transport=self.pool, unreachable_s=0.2) as service,
            EpisodeGateway(ADDRESS, transport=self.gateway, replies_s=0.5) as gateway,
        ):
            runs = AgentRuns(service, gateway, agent)
            await Driver(plan, service, gateway, runs, kept, self.display, first_pause_s=0.01).drive()
