"""A slot is free only after its environment is closed, and a close that fails is seen."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agentrl.environment import Weight
from agentrl.exceptions import CapacityError, InfraError
from agentrl.leases.pool import Capacity
from lab.testkit.agent_pools import QUICK, Build, acting, asked, until

HASTY = replace(QUICK, close_s=0.03, cancel_grace_s=0.02)


async def test_a_slot_is_taken_until_the_environment_is_closed(build: Build) -> None:
    world = await build(slots=1)
    lease = await world.leased()
    world.script.closing.clear()
    await world.client.release(lease)
    waiting = asyncio.create_task(world.client.lease(asked()))
    await until(lambda: world.script.count("close"))
    status = await world.client.status()
    assert (status.used, status.leases, status.closing, status.waiting) == (1, 0, 1, 1)
    world.script.closing.set()
    await waiting
    assert world.script.most_alive == 1
    assert world.script.count("close") == 1


async def test_a_close_that_raises_is_counted_and_tried_again(build: Build) -> None:
    world = await build(slots=1, failing_closes=3)
    await world.client.release(await world.leased())
    await world.client.lease(asked())
    assert world.script.count("close") == 4
    assert world.script.most_alive == 1
    assert world.metric("agentrl_close_failures_total", reason="raised") == 3
    assert (await world.client.status()).stuck == 0


async def test_a_close_that_hangs_shows_in_the_status_until_it_works(build: Build) -> None:
    world = await build(slots=1, timeouts=HASTY)
    lease = await world.leased()
    pid = (await world.client.step(lease, acting(2, "spawn"))).observation.data["pid"]
    world.script.closing.clear()
    await world.client.release(lease)
    await until(lambda: world.metric("agentrl_close_failures_total", reason="hung") >= 2)
    status = await world.client.status()
    assert (status.used, status.stuck, status.ready) == (1, 1, False)
    assert world.pool._closing[lease][0].processes._groups == [], f"{pid} was not ended"
    world.script.closing.set()
    await until(lambda: world.pool._capacity.used_slots == 0)
    assert (await world.client.status()).ready


async def test_a_close_that_ignores_its_cancellation_is_not_called_beside_itself(build: Build) -> None:
    world = await build(slots=1, timeouts=HASTY, deaf_closes=True)
    lease = await world.leased()
    world.script.closing.clear()
    await world.client.release(lease)
    await until(lambda: world.metric("agentrl_close_failures_total", reason="hung") >= 3)
    assert world.script.count("close") == 1
    world.script.closing.set()
    await until(lambda: world.pool._capacity.used_slots == 0)
    assert world.script.count("close") == 1


@pytest.mark.parametrize("wrong", [lambda self: None, lambda self: sys.exit(4)])
async def test_a_close_that_is_no_coroutine_does_not_lose_the_slot(
    build: Build, wrong: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await build(slots=1)
    lease = await world.leased()
    environment = type(world.pool._leases[lease].environment)
    monkeypatch.setattr(environment, "close", wrong)
    await world.client.release(lease)
    await until(lambda: world.metric("agentrl_close_failures_total", reason="raised"))
    monkeypatch.undo()
    await until(lambda: world.pool._capacity.used_slots == 0)


async def test_a_ledger_that_fails_does_not_lose_the_slot(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await build(slots=1)
    lease = await world.leased()
    await world.client.step(lease, acting(2, "spawn"))
    with monkeypatch.context() as broken:

        async def full(_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        broken.setattr(world.ledger, "remove", full)
        await world.client.release(lease)
        await until(lambda: world.metric("agentrl_close_failures_total", reason="processes_left"))
        assert (await world.client.status()).stuck == 1
        assert world.metric("agentrl_stuck") == world.metric("agentrl_slots_used") == 1
    await until(lambda: world.pool._capacity.used_slots == 0)
    assert world.script.count("close") == 1


async def test_a_spawn_beside_the_end_of_its_lease_leaves_nothing(build: Build) -> None:
    world = await build(slots=1)
    lease = await world.leased()
    step = asyncio.create_task(world.client.step(lease, acting(2, "spawn")))
    await until(lambda: world.script.count("spawn"))
    await world.client.release(lease)
    await asyncio.gather(step, return_exceptions=True)
    await until(lambda: world.pool._capacity.used_slots == 0)
    assert await world.ledger.groups() == []


async def test_the_reaper_comes_by_itself(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.leases.pool.REAP_S", 0.001)
    world = await build(slots=1)
    await world.leased(ttl_s=10)
    world.clock.now += 10
    await until(lambda: world.pool._capacity.used_slots == 0)


async def test_a_pool_that_ends_says_what_it_could_not_close(build: Build) -> None:
    world = await build(slots=1)
    lease = await world.leased()
    await world.client.step(lease, acting(2, "spawn"))
    world.script.closing.clear()
    assert await world.pool.stop(0.02) == 1
    assert await world.ledger.groups() == []


async def test_an_operation_that_does_not_end_does_not_keep_its_environment_from_closing(build: Build) -> None:
    world = await build(slots=1)
    lease = await world.leased()
    step = asyncio.create_task(world.client.step(lease, acting(2, "ignore cancellation")))
    await until(lambda: world.script.count("ignore cancellation"))
    await world.client.release(lease)
    await until(lambda: world.pool._capacity.used_slots == 0)
    assert isinstance((await asyncio.gather(step, return_exceptions=True))[0], Exception)


async def test_an_environment_that_cannot_be_made_takes_no_slot(build: Build) -> None:
    world = await build(slots=1, unmakable=True)
    for _ in range(2):
        with pytest.raises(InfraError, match="no such device"):
            await world.client.lease(asked())
    assert (await world.client.status()).used == 0


class TestCapacity:
    async def test_a_waiter_that_leaves_takes_nothing_along(self) -> None:
        capacity = Capacity(1, Weight())
        await capacity.acquire(Weight(), 0)
        waiters = [asyncio.create_task(capacity.acquire(Weight(), 100)) for _ in range(3)]
        await until(lambda: capacity.waiting == 3)
        capacity.release(Weight())
        waiters[0].cancel()  # in the moment of its admission
        waiters[1].cancel()
        await asyncio.gather(*waiters[:2], return_exceptions=True)
        await waiters[2]
        assert (capacity.used_slots, capacity.waiting) == (1, 0)

    async def test_light_tasks_do_not_overtake_a_heavy_one(self) -> None:
        capacity = Capacity(10, Weight(100, 1.0))
        await capacity.acquire(Weight(60), 0)
        heavy = asyncio.create_task(capacity.acquire(Weight(90), 100))
        await until(lambda: capacity.waiting == 1)
        with pytest.raises(CapacityError):
            await capacity.acquire(Weight(10), 0)
        light = asyncio.create_task(capacity.acquire(Weight(10), 100))
        await until(lambda: capacity.waiting == 2)
        assert not heavy.done()
        capacity.release(Weight(60))
        await asyncio.gather(heavy, light)
        assert capacity.used == Weight(100)

    async def test_who_gives_up_lets_the_next_one_in(self) -> None:
        capacity = Capacity(10, Weight(100))
        await capacity.acquire(Weight(60), 0)
        heavy = asyncio.create_task(capacity.acquire(Weight(90), 100))
        await until(lambda: capacity.waiting == 1)
        light = asyncio.create_task(capacity.acquire(Weight(40), 100))
        await until(lambda: capacity.waiting == 2)
        heavy.cancel()
        await light
        assert capacity.used == Weight(100)

    async def test_parts_of_cores_add_up(self) -> None:
        capacity = Capacity(100, Weight(0, 1.0))
        for _ in range(10):
            await capacity.acquire(Weight(0, 0.1), 0)
        with pytest.raises(CapacityError):
            await capacity.acquire(Weight(0, 0.1), 0)
