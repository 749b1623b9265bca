"""The leading process keeps its workers: one that dies or freezes comes back, and meanwhile nobody waits; a stop ends all."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from groundwork.network import find_available_port
from lab.testkit.waiting import eventually
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import create_app
from openclaw.gateway.auth import Keyring
from openclaw.gateway.chat import ChatService
from openclaw.ledger.store import Ledger
from openclaw.runtime.serve import GatewayServer
from openclaw.runtime.workers import Workers
from tests.helpers import light_worker

SECONDS = 120.0


@dataclass
class Leader:
    """The leading process's parts, here in the test's own process."""

    workers: Workers
    service: ChatService
    registry: CollectorRegistry
    stop: asyncio.Event
    tasks: list[asyncio.Task[Any]]
    url: str

    def pids(self) -> list[int]:
        return [worker.child.pid for _, worker in sorted(self.workers._workers.items())]

    def restarts(self) -> float:
        return self.registry.get_sample_value("openclaw_worker_restarts_total") or 0.0

    async def answers(self, count: int) -> list[str]:
        """Return what so many connections get, one after the other."""
        results = []
        for _ in range(count):
            async with httpx.AsyncClient(trust_env=False, timeout=SECONDS) as client:
                results.append((await client.get(f"{self.url}/healthz")).text)
        return results

    async def listens(self) -> bool:
        """Return whether any worker does already; one that is ready does so a moment later."""
        try:
            await self.answers(1)
        except httpx.ConnectError:
            return False
        return True


@asynccontextmanager
async def leading(
    folder: Path, tokenizer: Any, frozen_seconds: float = SECONDS, program: str = light_worker.__name__
) -> AsyncIterator[Leader]:
    """Lead two workers of a program."""
    config = RuntimeConfig(
        policy_url="http://127.0.0.1:9",
        tokenizer="tiny-policy",
        ledger=str(folder / "ledger.sqlite"),
        context_length=2048,
        prm_max_new_tokens=512,
        port=find_available_port(),
        gateway_workers=2,
        frozen_seconds=frozen_seconds,
    )
    registry, keyring, stop = CollectorRegistry(), Keyring(None), asyncio.Event()
    ledger = Ledger(config.ledger or "")
    service = ChatService(config, tokenizer, ledger, registry)
    workers = Workers(config, registry, program)
    workers.bind()
    app = create_app(service, workers.metrics, keyring, workers=workers.alive)
    server = GatewayServer(app, config, service.metrics, sockets=())
    tasks = [
        asyncio.create_task(server.serve()),
        asyncio.create_task(workers.run(server, app, service, keyring, 0, stop)),
    ]
    leader = Leader(workers, service, registry, stop, tasks, f"http://127.0.0.1:{config.port}")
    try:
        yield leader
    finally:
        stop.set()
        await asyncio.gather(*tasks)
        ledger.close()


@pytest.fixture
async def lead(tmp_path: Path, tokenizer: Any, request: pytest.FixtureRequest) -> AsyncIterator[Leader]:
    async with leading(tmp_path, tokenizer, getattr(request, "param", SECONDS)) as leader:
        await eventually(leader.workers.alive, 2, SECONDS)
        await eventually(leader.listens, True, SECONDS)
        yield leader


async def test_the_kernel_spreads_connections_over_all_workers(lead: Leader) -> None:
    async def seen() -> set[str]:
        return set(await lead.answers(8))

    await eventually(seen, {str(pid) for pid in lead.pids()}, SECONDS)


async def test_a_worker_that_dies_comes_back_and_meanwhile_nobody_waits(lead: Leader) -> None:
    before = lead.pids()
    assert lead.service.limits._under_way.total() == 2
    os.kill(before[0], signal.SIGKILL)
    answers = await lead.answers(20)
    assert all(answer == str(before[1]) or "status" in answer or answer.isdigit() for answer in answers)
    await eventually(lambda: (lead.workers.alive(), lead.restarts()), (2, 1.0), SECONDS)
    after = lead.pids()
    assert after[0] != before[0]
    assert after[1] == before[1]
    assert lead.service.limits._under_way.total() == 2, "what the dead one held was given back"
    assert not lead.workers._deputies, "the leading process accepts no connections any more"


@pytest.mark.parametrize("lead", [1.0], indirect=True)
async def test_a_worker_that_freezes_is_replaced(lead: Leader) -> None:
    frozen = lead.pids()[0]
    os.kill(frozen, signal.SIGSTOP)
    await eventually(lambda: lead.restarts() >= 1 and lead.workers.alive() == 2, True, SECONDS)
    assert frozen not in lead.pids()


async def test_a_stop_ends_the_workers_and_then_the_server(lead: Leader) -> None:
    children = [worker.child for worker in lead.workers._workers.values()]
    lead.stop.set()
    await asyncio.gather(*lead.tasks)
    assert [child.alive() for child in children] == [False, False]
    assert not lead.service.limits._under_way
    with pytest.raises(httpx.ConnectError):
        await lead.answers(1)


async def test_the_leading_process_serves_until_its_workers_do(tmp_path: Path, tokenizer: Any) -> None:
    async with leading(tmp_path, tokenizer, program="tests.helpers.no_such_worker") as leader:
        await eventually(leader.listens, True, SECONDS)
        assert all('"workers":0' in answer for answer in await leader.answers(8))
        await eventually(lambda: leader.restarts() >= 2, True, SECONDS)
        assert all('"workers":0' in answer for answer in await leader.answers(8))
