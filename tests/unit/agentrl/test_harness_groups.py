"""Groups that the driver does not finish, and groups with spare runs, against a pool in this process and a whole gateway."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import httpx
import pytest

from agentrl.harness.gateway import EpisodeGateway
from agentrl.harness.records import BEGUN, GROUPS, Records, lines, schedule_of
from agentrl.harness.run import AgentRuns, Ended
from lab.testkit.agent_pools import ADDRESS, PATIENT_S, CutTransport, until
from tests.helpers.agent_runs import FAILED, SOLVED, TASKS, AgentPool, Drive
from tests.unit.agentrl import test_harness_driver as driving
from tests.unit.gateway import conftest as gateways

pytestmark = pytest.mark.slow

start, tokenizer = gateways.start, gateways.tokenizer
stack, pools, pool, drive = driving.stack, driving.pools, driving.pool, driving.drive
LOST = driving.LOST
Stack = gateways.Stack


def holding(stack: Stack, pool: AgentPool, first: int) -> asyncio.Event:
    """Let programs ask; the first ones end, the others wait for the event."""
    ask, go = driving.asks(stack), asyncio.Event()

    async def hold(key: str) -> None:
        number = len(pool.runs.keys)
        await ask(key)
        if number > first:
            await go.wait()

    pool.runs.ask = hold
    return go


def told(stack: Stack) -> Counter[tuple[str, str | None, float | None]]:
    return Counter((episode.state, episode.reason, episode.reward) for episode in stack.ledger.episodes.all())


async def test_what_a_group_has_that_is_given_up_is_trained_at_once(
    stack: Stack, pool: AgentPool, drive: Drive, tmp_path: Path
) -> None:
    pool.runs.ask = driving.asks(stack)
    pool.runs.ends += [SOLVED, FAILED, LOST, LOST]
    await drive.run(groups=1, group_size=3, parallel=1, tries=2, records=tmp_path)
    assert told(stack) == {
        ("settled", None, 1.0): 1,
        ("settled", None, -1.0): 1,
        ("settled", "infra_error", None): 2,
    }
    assert stack.ledger.samples.ready_count() == 2
    assert driving.states(tmp_path) == ["begun", "given_up"]


async def test_members_that_are_lost_together_give_a_group_up_once(
    drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All members of a group end in the same turn of the event loop."""
    go = asyncio.Event()

    async def lose(*_: object) -> Ended:
        await go.wait()
        return Ended(episode=None, status="infra_error", seconds=1.0, problem="lost")

    monkeypatch.setattr(AgentRuns, "run", lose)
    run = asyncio.create_task(drive.run(groups=2, group_size=4, parallel=8, tries=1, records=tmp_path))
    await until(lambda: driving.states(tmp_path) == ["begun", "begun"])
    go.set()
    await run
    assert Counter(driving.states(tmp_path)) == {"begun": 2, "given_up": 2}
    assert drive.display.tally.given_up == 2


async def test_a_driver_that_is_stopped_has_its_rewarded_runs_trained(
    stack: Stack, pool: AgentPool, drive: Drive, tmp_path: Path
) -> None:
    holding(stack, pool, 2)
    run = asyncio.create_task(drive.run(groups=1, group_size=3, parallel=1, records=tmp_path))
    await until(lambda: pool.runs.running == 1 and len(pool.runs.keys) == 3)
    assert told(stack)["closed", None, 1.0] == 1
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert told(stack) == {("settled", None, 1.0): 1, ("settled", None, -1.0): 1}
    assert "is left: closed, 2 runs are trained" in drive.said
    assert driving.states(tmp_path) == ["begun", "given_up"]


async def test_groups_that_a_killed_driver_left_are_closed_by_the_next_one(
    stack: Stack, pool: AgentPool, drive: Drive, tmp_path: Path
) -> None:
    """It left a rewarded and an open member of one group, and another group without an episode."""
    records = Records(tmp_path, schedule_of(TASKS, "stand-in", 2, 0))
    for name in ("left", "empty"):
        records.group({"number": 0, "task": "easy", "group": name, "state": BEGUN})
    async with EpisodeGateway(ADDRESS, transport=CutTransport(drive.gateway.inner)) as gateway:
        rewarded, opened = [await gateway.create("easy", "left", 3, 9000, {}) for _ in range(2)]
        await driving.asks(stack)(rewarded.api_key)
        await gateway.reward(rewarded.id, "ok", 1.0)
    assert stack.ledger.episodes.get(rewarded.id).state == "closed"

    again = driving.again(drive)
    await again.run(groups=1, records=tmp_path)
    assert stack.ledger.episodes.get(rewarded.id).reason == "straggler"
    assert stack.ledger.episodes.get(opened.id).status == "infra_error"
    assert "group 0 (easy) of an earlier run: closed, 0 runs are trained, 1 straggler, 1 infra_error" in again.said
    kept = [line["group"] for line in lines(tmp_path / GROUPS) if line["state"] == "given_up"]
    assert kept == ["left", "empty"]
    assert driving.states(tmp_path)[-2:] == ["begun", "finished"]
    last = driving.again(drive)
    await last.run(groups=1, records=tmp_path)
    assert last.gateway.seen.count("POST close") == 0


async def test_spare_runs_are_ended_when_their_group_is_full(
    stack: Stack, pool: AgentPool, drive: Drive, tmp_path: Path
) -> None:
    holding(stack, pool, 2)
    await drive.run(groups=1, group_size=2, spare=2, parallel=4, records=tmp_path)
    assert told(stack) == {("settled", None, 1.0): 1, ("settled", None, -1.0): 1}
    assert stack.ledger.episodes.open() == []
    assert stack.ledger.samples.ready_count() == 2
    assert (await driving.leases(pool), pool.runs.running) == (0, 0)
    assert "full, 2 spare runs ended" in drive.said
    tally = drive.display.tally
    assert (tally.finished, tally.spared, tally.lost, len(tally.scores)) == (1, 2, 0, 2)
    assert driving.states(tmp_path) == ["begun", "finished"]
    drive.display.summary()
    assert "spare runs ended" in drive.said


async def test_no_more_runs_are_rewarded_than_a_group_has(stack: Stack, pool: AgentPool, drive: Drive) -> None:
    """All programs have ended and have their verdicts before the gateway gets the first reward."""
    inner, go = drive.gateway.inner, asyncio.Event()

    class Held(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/reward"):
                await go.wait()
            return await inner.handle_async_request(request)

    drive.gateway.inner = Held()
    run = asyncio.create_task(drive.run(groups=1, group_size=2, spare=2, parallel=4))
    await until(lambda: len(pool.runs.keys) == 4 and not pool.runs.running)
    while await driving.leases(pool):
        await asyncio.sleep(0.01)
    go.set()
    await run
    assert len(stack.ledger.episodes.all()) == drive.gateway.seen.count("POST reward") == 2
    assert drive.display.tally.spared == 2


async def test_a_refused_reward_gives_its_place_to_a_spare_run(stack: Stack, pool: AgentPool, drive: Drive) -> None:
    """The episode of the first reward is deleted while the reward is on its way."""
    inner, gone = drive.gateway.inner, list[str]()

    class Deleting(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/reward") and not gone:
                gone.append(request.url.path.split("/")[-2])
                await asyncio.to_thread(stack.ledger.episodes.delete, gone[0])
            return await inner.handle_async_request(request)

    drive.gateway.inner = Deleting()
    async with asyncio.timeout(PATIENT_S):
        await drive.run(groups=1, group_size=2, spare=1, parallel=1, tries=1)
    assert (drive.display.tally.finished, drive.display.tally.lost) == (1, 1)
    assert len(stack.ledger.episodes.all()) == 2


@pytest.mark.parametrize(("lost", "state"), [(1, "finished"), (2, "given_up")])
async def test_spare_runs_take_the_place_of_lost_ones(
    stack: Stack, pool: AgentPool, drive: Drive, tmp_path: Path, lost: int, state: str
) -> None:
    pool.runs.ends += [LOST] * lost
    await drive.run(groups=1, group_size=2, spare=1, parallel=1, tries=1, records=tmp_path)
    assert driving.states(tmp_path) == ["begun", state]
    assert drive.display.tally.spared == 0


async def test_spare_runs_that_were_ended_leave_room_for_the_next_groups(
    stack: Stack, pool: AgentPool, drive: Drive
) -> None:
    await drive.run(groups=6, group_size=2, spare=3, parallel=3)
    assert drive.display.tally.finished == 6
    assert len(drive.display.tally.scores) == 12
