"""Several pools behind one address: the least loaded first, the next one when it is full or gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import pytest
from prometheus_client import CollectorRegistry

from agentrl import client as http_client
from agentrl.client import HttpLeases, episode
from agentrl.exceptions import CapacityError, InfraError, NotFoundError
from agentrl.protocol import LeaseService
from agentrl.router import Router
from agentrl.web.app import create_app
from lab.testkit.agent_pools import (
    ADDRESS,
    Build,
    CutTransport,
    World,
    acting,
    asked,
    judging,
    renewing,
    resetting,
    until,
)

REFUSED = ["refused"] * 100_000


@dataclass
class Workers:
    """Pools by name, a client of the router over them, and where the router's own client can be cut."""

    worlds: dict[str, World]
    client: HttpLeases
    front: CutTransport
    registry: CollectorRegistry

    def cut_off(self, name: str) -> None:
        """Let a worker refuse all connections from now on."""
        self.worlds[name].transport.cuts = REFUSED.copy()

    def used(self) -> dict[str, int]:
        return {name: world.pool._capacity.used_slots for name, world in self.worlds.items()}


def routed(workers: dict[str, LeaseService]) -> tuple[HttpLeases, CutTransport, CollectorRegistry]:
    """Return a client of a new router."""
    registry = CollectorRegistry()
    app = create_app(Router(workers, registry), registry, key=None)
    front = CutTransport(httpx.ASGITransport(app, raise_app_exceptions=False))
    return HttpLeases(ADDRESS, transport=front), front, registry


@pytest.fixture
async def workers(build: Build, monkeypatch: pytest.MonkeyPatch) -> Workers:
    monkeypatch.setattr(http_client, "FIRST_PAUSE_S", 0.001)
    worlds = {name: await build("http") for name in ("one", "two")}
    inner: dict[str, LeaseService] = {
        name: HttpLeases(ADDRESS, transport=world.transport, unreachable_s=0.02) for name, world in worlds.items()
    }
    return Workers(worlds, *routed(inner))


async def test_an_episode_through_a_router(workers: Workers) -> None:
    async with episode(workers.client, "plain") as lent:
        assert lent.lease_id.startswith("one.")
        assert (await lent.reset(seed=3)).text == "plain 3"
        assert (await lent.step({"do": "click"})).observation.text == "1: click"
        assert (await lent.evaluate()).score == 1.0
    await until(lambda: workers.used() == {"one": 0, "two": 0})


async def test_the_least_loaded_worker_comes_first(workers: Workers) -> None:
    leases = [(await workers.client.lease(asked())).lease_id.partition(".")[0] for _ in range(4)]
    assert leases == ["one", "two", "one", "two"]
    status = await workers.client.status()
    assert (status.slots, status.used, status.ready) == (4, 4, True)
    assert {name: each and each.used for name, each in status.workers.items()} == {"one": 2, "two": 2}


async def test_leases_at_once_fill_all_workers(workers: Workers) -> None:
    await asyncio.gather(*(workers.client.lease(asked(wait_s=0)) for _ in range(4)))
    assert workers.used() == {"one": 2, "two": 2}
    with pytest.raises(CapacityError) as error:
        await workers.client.lease(asked(wait_s=0))
    assert error.value.retryable
    assert error.value.retry_after_s


async def test_leases_at_once_are_spread(workers: Workers) -> None:
    for world in workers.worlds.values():
        world.pool._capacity.slots = 50
    await asyncio.gather(*(workers.client.lease(asked()) for _ in range(20)))
    assert workers.used() == {"one": 10, "two": 10}


async def test_a_full_worker_is_passed_over(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    heavy = await workers.client.lease(asked("heavy"))
    for name in ("two", "one"):
        assert heavy.lease_id.startswith("one.")
        await workers.worlds[name].client.lease(asked("light"))
    assert (await workers.client.lease(asked("heavy", wait_s=0))).lease_id.startswith("two.")
    assert workers.registry.get_sample_value("agentrl_router_leases_total", {"worker": "two"}) == 1


async def test_a_wait_ends_when_a_slot_is_free(workers: Workers) -> None:
    leases = [(await workers.client.lease(asked())).lease_id for _ in range(4)]
    waiting = asyncio.create_task(workers.client.lease(asked(wait_s=100)))
    await until(lambda: any(world.pool._capacity.waiting for world in workers.worlds.values()))
    for lease in leases:
        await workers.client.release(lease)
    assert (await waiting).queued_s > 0


async def test_a_worker_that_is_gone_is_passed_over(workers: Workers) -> None:
    workers.cut_off("one")
    for _ in range(2):
        assert (await workers.client.lease(asked())).lease_id.startswith("two.")
    status = await workers.client.status()
    assert status.workers["one"] is None
    assert status.ready
    workers.cut_off("two")
    with pytest.raises(InfraError, match="no worker answers"):
        await workers.client.lease(asked())
    assert not (await workers.client.status()).ready


async def test_a_worker_that_dies_while_it_is_asked(workers: Workers) -> None:
    world = workers.worlds["one"]
    world.transport.cuts = ["", *REFUSED]  # the load, and then nothing
    assert (await workers.client.lease(asked())).lease_id.startswith("two.")
    found = workers.registry.get_sample_value("agentrl_router_passed_on_total", {"worker": "one", "kind": "infra"})
    assert found == 1


async def test_a_lease_on_a_worker_that_died(workers: Workers) -> None:
    lease = (await workers.client.lease(asked())).lease_id
    workers.cut_off("one")
    with pytest.raises(InfraError, match="does not answer"):
        await workers.client.reset(lease, resetting())


async def test_a_task_that_only_one_worker_has(workers: Workers) -> None:
    registry = workers.worlds["one"].pool._registry
    del registry._tasks["plain"]
    assert (await workers.client.lease(asked())).lease_id.startswith("two.")
    del workers.worlds["two"].pool._registry._tasks["plain"]
    with pytest.raises(NotFoundError, match="no task 'plain'"):
        await workers.client.lease(asked())


async def test_a_task_that_fits_no_worker_is_refused_at_once(workers: Workers) -> None:
    with pytest.raises(CapacityError) as error:
        await workers.client.lease(asked("huge", wait_s=1000))
    assert error.value.code == "larger_than_pool"
    for name in workers.worlds:
        asked_once = {"worker": name, "kind": "capacity"}
        assert workers.registry.get_sample_value("agentrl_router_passed_on_total", asked_once) == 1


@pytest.mark.parametrize("where", ["before the router", "behind the router"])
async def test_a_cut_connection_never_executes_twice(workers: Workers, where: str) -> None:
    def cut(*cuts: str) -> None:
        transport = workers.front if where == "before the router" else workers.worlds["one"].transport
        transport.cuts = list(cuts)

    if where == "before the router":
        cut("after", "before")
    lease = (await workers.client.lease(asked())).lease_id
    cut("after", "before", "refused")
    await workers.client.reset(lease, resetting())
    cut("after", "after")
    await workers.client.step(lease, acting(2, "click"))
    cut("after")
    await workers.client.evaluate(lease, judging())
    assert workers.used() == {"one": 1, "two": 0}
    assert workers.worlds["one"].script.calls == ["reset", "click", "evaluate"]


async def test_lease_ids_carry_names_so_another_list_of_workers_misroutes_nothing(workers: Workers) -> None:
    lease = (await workers.client.lease(asked())).lease_id
    worker = HttpLeases(ADDRESS, transport=workers.worlds["one"].transport)
    other = HttpLeases(ADDRESS, transport=workers.worlds["two"].transport)
    second, _, _ = routed({"zero": other, "one": worker})
    assert (await second.reset(lease, resetting())).text == "plain 0"
    assert (await second.renew(lease, renewing(30))).expires_in_s == 30
    third, _, _ = routed({"zero": other})
    for wrong in (lease, "one", "", "two.", "zero"):
        with pytest.raises(NotFoundError):
            await third.renew(wrong or "x", renewing(30))
    assert workers.worlds["two"].script.calls == []
    held = (await other.lease(asked())).lease_id
    for strange in (f"zero.x?y={held}", f"zero.x#{held}", "zero.%2e%2e", "zero.x y"):
        with pytest.raises(NotFoundError):
            await third.reset(strange, resetting())
    assert workers.worlds["two"].script.calls == []


async def test_a_router_withdraws_what_its_client_withdraws(workers: Workers) -> None:
    for _ in range(4):
        await workers.client.lease(asked())
    waiting = asyncio.create_task(workers.client.lease(asked(wait_s=100)))
    await until(lambda: any(world.pool._capacity.waiting for world in workers.worlds.values()))
    waiting.cancel()
    await until(lambda: not any(world.pool._capacity.waiting for world in workers.worlds.values()))
    request = asked(wait_s=0)
    workers.worlds["two"].pool._capacity.slots = 3
    await workers.client.lease(request)
    assert workers.used() == {"one": 2, "two": 3}
    assert (await workers.client.release(request.request_id)).found
    await until(lambda: workers.used() == {"one": 2, "two": 2})


async def test_a_router_s_retry_joins_the_wait(workers: Workers) -> None:
    held = [await workers.client.lease(asked()) for _ in range(4)]
    request = asked(wait_s=100)
    first = asyncio.create_task(workers.client.lease(request))
    waiting: Callable[[], int] = lambda: sum(world.pool._capacity.waiting for world in workers.worlds.values())  # noqa: E731
    await until(lambda: waiting() == 1)
    again = asyncio.create_task(workers.client.lease(request))
    await until(lambda: len(workers.front.seen) == 6)
    assert waiting() == 1
    for each in held:
        await workers.client.release(each.lease_id)
    assert await again == await first
    await until(lambda: sum(workers.used().values()) == 1)
