"""Start pools whose environments follow a script; each test ends with everything closed and nothing in the ledger."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from agentrl.client import HttpLeases, InProcessLeases
from agentrl.environment import Registry, Weight
from agentrl.leases.lease import CloseTimeouts
from agentrl.leases.metrics import PoolMetrics
from agentrl.leases.pool import Capacity, Pool
from agentrl.processes import ProcessLedger
from agentrl.web.app import create_app
from lab.testkit.agent_pools import ADDRESS, PATIENT_S, QUICK, Build, Clock, CutTransport, Script, World


@pytest.fixture
async def build(tmp_path: Path) -> AsyncIterator[Build]:
    """Return a function that starts a pool."""
    worlds: list[World] = []
    numbers = itertools.count()

    async def start(
        kind: str = "in_process",
        *,
        slots: int = 2,
        key: str | None = None,
        timeouts: CloseTimeouts = QUICK,
        **script: Any,
    ) -> World:
        plan, clock, registry = Script(**script), Clock(), CollectorRegistry()
        ledger = ProcessLedger(tmp_path / f"{next(numbers)}.sqlite")
        capacity = Capacity(slots, Weight(1000, 2.0))
        tasks = Registry([plan.environment()])
        pool = Pool(tasks, capacity, ledger, PoolMetrics(registry), timeouts=timeouts, clock=clock)
        await pool.start()
        app = create_app(pool, registry, key=key, most_body_bytes=10_000)
        transport = CutTransport(httpx.ASGITransport(app, raise_app_exceptions=False))
        client = HttpLeases(ADDRESS, key, transport=transport) if kind == "http" else InProcessLeases(pool)
        world = World(pool, plan, clock, registry, ledger, client, transport)
        worlds.append(world)
        return world

    yield start
    for world in worlds:
        world.script.closing.set()
        world.script.gate.set()
        world.script.thread_gate.set()
        world.script.failing_closes = 0
        world.script.deaf_closes = False
        assert await world.pool.stop(PATIENT_S) == 0
        assert await world.ledger.groups() == []
        world.ledger.close()
