"""Code that blocks runs in the pool's threads, never in its event loop, and holds its slot until it ends."""

from __future__ import annotations

import asyncio

import pytest

from agentrl.exceptions import DeadlineError
from lab.testkit.agent_pools import QUICK, Build, Script, acting, until


async def test_as_many_calls_as_slots_block_at_a_time_and_nothing_else_waits(build: Build) -> None:
    world = await build(slots=3)
    leases = [await world.leased() for _ in range(3)]
    steps = [asyncio.create_task(world.client.step(lease, acting(2, "block"))) for lease in leases]
    environments = [world.pool._leases[lease].environment for lease in leases]
    await until(lambda: all(each.blocked for each in environments))
    await until(lambda: sum(future.running() for each in environments for future in each._blocking) == 3)
    assert (await world.client.status()).used == 3
    world.script.thread_gate.set()
    answers = await asyncio.gather(*steps)
    assert [answer.observation.text for answer in answers] == ["1: block"] * 3
    assert not any(each.blocked for each in environments)


async def test_a_slot_is_taken_until_the_blocking_call_ends(build: Build) -> None:
    world = await build(slots=1, timeouts=QUICK)
    lease = await world.leased()
    with pytest.raises(DeadlineError, match="took longer"):
        await world.client.step(lease, acting(2, "block", timeout_s=0.05))
    await world.client.release(lease)
    await until(lambda: world.metric("agentrl_close_failures_total", reason="blocked") >= 1)
    assert ((await world.client.status()).used, world.script.count("close")) == (1, 1)
    world.script.thread_gate.set()
    await until(lambda: world.pool._capacity.used_slots == 0)


async def test_without_a_pool_there_are_no_threads() -> None:
    alone = Script().environment()(None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(RuntimeError, match="no pool made this environment"):
        await alone.blocking(print)
