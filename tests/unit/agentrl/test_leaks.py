"""An episode that has ended leaves nothing in memory: counted in objects, which no speed and no allocator changes."""

from __future__ import annotations

import asyncio
import gc
import sys

import pytest

from agentrl.client import episode
from agentrl.exceptions import InvalidError
from agentrl.leases.pool import Pool
from lab.testkit.agent_pools import Build, World, until

pytestmark = pytest.mark.slow

WARM_UP, EPISODES = 40, 120


async def play(world: World, episodes: int) -> int:
    """Play episodes, four at a time; return the memory blocks of Python that are left."""

    async def some() -> None:
        for _ in range(episodes // 4):
            async with episode(world.client, "plain") as lent:
                await lent.reset()
                await lent.step({"do": "click"})
                with pytest.raises(InvalidError):
                    await lent.step({"do": "invalid"})
                await lent.evaluate()

    await asyncio.gather(*(some() for _ in range(4)))
    await until(lambda: world.pool._capacity.used_slots == 0)
    world.script.calls.clear()
    world.transport.seen.clear()
    await asyncio.sleep(0)
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.parametrize("kind", ["in_process", "http"])
async def test_memory_does_not_grow_with_episodes(build: Build, kind: str) -> None:
    world = await build(kind, slots=4)
    await play(world, WARM_UP)
    before = await play(world, WARM_UP)
    grown = await play(world, EPISODES) - before
    assert grown < EPISODES, f"{grown} blocks for {EPISODES} episodes"


async def test_a_table_that_keeps_leases_is_noticed(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    world = await build(slots=4)
    await play(world, WARM_UP)
    before = await play(world, WARM_UP)
    monkeypatch.setattr(Pool, "_forget", lambda *_: None)
    grown = await play(world, EPISODES) - before
    assert grown > 3 * EPISODES
