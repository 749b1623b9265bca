"""The driver of agent programs, against a pool in this process and a whole gateway."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrl.exceptions import InfraError
from agentrl.harness.driver import Plan
from agentrl.harness.gateway import AwayError, EpisodeGateway
from agentrl.harness.records import EPISODES, GROUPS, lines
from agentrl.protocol import Verdict
from groundwork.exceptions import ConfigError
from lab.testkit.agent_pools import ADDRESS, PATIENT_S, CutTransport, until
from openclaw.ledger.episodes import Episode
from tests.helpers.agent_runs import AGENT, FAILED, SOLVED, AgentPool, Drive, Elsewhere, Runs, start_pool
from tests.unit.gateway import conftest as gateways

pytestmark = pytest.mark.slow

start, tokenizer = gateways.start, gateways.tokenizer
Stack = gateways.Stack
Start = Callable[..., Coroutine[Any, Any, AgentPool]]
LOST = InfraError("the sandbox is gone", code="gone")


@pytest.fixture
async def stack(start: gateways.Starter) -> Stack:
    return await start()


@pytest.fixture
async def pools(tmp_path: Path) -> AsyncIterator[Start]:
    """Return a function that starts a pool; each ends without a lease."""
    started: list[AgentPool] = []
    numbers = itertools.count()

    async def begin(runs: Runs | None = None, **settings: Any) -> AgentPool:
        pool = await start_pool(runs or Runs(), tmp_path / f"pool-{next(numbers)}.sqlite", **settings)
        started.append(pool)
        return pool

    yield begin
    for pool in started:
        pool.runs.gate.set()
        assert await pool.pool.stop(PATIENT_S) == 0
        pool.ledger.close()


@pytest.fixture
async def pool(pools: Start) -> AgentPool:
    return await pools()


@pytest.fixture
def drive(pool: AgentPool, stack: Stack) -> Drive:
    return Drive(CutTransport(pool.transport), CutTransport(Elsewhere(stack.url)))


def again(drive: Drive) -> Drive:
    """Return a driver of a later process."""
    return Drive(CutTransport(drive.pool.inner), CutTransport(drive.gateway.inner))


def asks(stack: Stack) -> Callable[[str], Any]:
    """Return a program that asks the gateway once, with the key of its episode."""

    async def ask(key: str) -> None:
        stack.say("Done.")
        body = {"model": "policy", "messages": [{"role": "user", "content": "Do it."}]}
        async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
            answer = await http.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 200, answer.text

    return ask


async def leases(pool: AgentPool) -> int:
    return (await pool.pool.status()).leases


def states(records: Path) -> list[str]:
    return [line["state"] for line in lines(records / GROUPS)]


def by_group(episodes: list[Episode]) -> dict[str, list[Episode]]:
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(str(episode.group), []).append(episode)
    return groups


async def test_groups_are_driven_rewarded_and_trained(
    stack: Stack, pool: AgentPool, drive: Drive, tmp_path: Path
) -> None:
    pool.runs.ask = asks(stack)
    await drive.run(group_size=3, parallel=2, records=tmp_path / "records")

    groups = by_group(stack.ledger.episodes.all())
    assert sorted(group.partition("#")[0] for group in groups) == ["easy", "hard"]
    for members in groups.values():
        assert [episode.group_size for episode in members] == [3, 3, 3]
        assert {episode.task for episode in members} == {str(members[0].group).partition("#")[0]}
        assert Counter(episode.status for episode in members).keys() == {"ok", "task_failed"}
        assert all(episode.reward == (1.0 if episode.status == "ok" else -1.0) for episode in members)
        assert all((episode.state, episode.reason) == ("settled", None) for episode in members)
    assert stack.ledger.samples.ready_count() == 6
    assert pool.runs.most <= 2
    assert {(action["model"], action["timeout_s"]) for action in pool.runs.actions} == {("policy", 50.0)}
    assert await leases(pool) == 0

    kept = list(lines(tmp_path / "records" / EPISODES))
    assert {line["episode"] for line in kept} == {episode.id for episode in stack.ledger.episodes.all()}
    assert {(line["attempt"], line["turns"], line["problem"]) for line in kept} == {(1, 1, "")}
    assert sorted(states(tmp_path / "records")) == ["begun", "begun", "finished", "finished"]
    assert "mean reward" in drive.said
    assert "solved" in drive.said
    drive.display.summary()
    assert "runs rewarded" in drive.said


async def test_a_lost_run_is_never_rewarded_and_another_takes_its_place(
    stack: Stack, pool: AgentPool, drive: Drive
) -> None:
    spoiled = Verdict(status="infra_error", detail="the grader is gone")
    pool.runs.ends += [LOST, spoiled, SOLVED, Verdict(status="timeout"), Verdict(status="timeout", score=0.0)]
    await drive.run(groups=1, parallel=1)
    episodes = stack.ledger.episodes.all()
    told = [(episode.status, episode.reward) for episode in episodes]
    lost = ("infra_error", None)
    assert told == [lost, lost, ("ok", 1.0), lost, ("timeout", -1.0)]
    assert len({episode.group for episode in episodes}) == 1
    assert [episode.metadata["attempt"] for episode in episodes] == [1, 2, 3, 1, 2]
    assert "the sandbox is gone" in drive.said
    assert "the grader is gone" in drive.said
    assert "timeout without a score" in drive.said
    assert drive.said.count("its time was over") == 1
    assert (drive.display.tally.finished, drive.display.tally.lost, drive.display.tally.solved) == (1, 3, 1)


async def test_a_group_without_a_member_is_given_up_and_the_next_one_begins(
    stack: Stack, pool: AgentPool, drive: Drive, tmp_path: Path
) -> None:
    pool.runs.ends += [SOLVED, LOST, LOST]
    await drive.run(parallel=1, tries=2, group_size=3, records=tmp_path)
    first, second = by_group(stack.ledger.episodes.all()).values()
    assert [episode.status for episode in first] == ["ok", "infra_error", "infra_error"]
    assert [episode.state for episode in second] == ["settled"] * 3
    assert "given up with 1 rewarded members: 2 runs of a member were lost" in drive.said
    assert (drive.display.tally.finished, drive.display.tally.given_up) == (1, 1)
    assert sorted(states(tmp_path)) == ["begun", "begun", "finished", "given_up"]
    assert stack.ledger.episodes.get(first[0].id).reason == "straggler", "it waits for no other member"


async def test_answers_that_are_lost_create_and_reward_nothing_twice(
    stack: Stack, pool: AgentPool, drive: Drive
) -> None:
    """Every request to pool and gateway is cut once before and once after it is carried out."""
    drive.gateway.cuts, drive.pool.cuts = (["before", "after", ""] * 40 for _ in range(2))
    pool.runs.ends += [LOST]
    await drive.run(groups=1, parallel=1)
    told = [(episode.status, episode.reward) for episode in stack.ledger.episodes.all()]
    assert Counter(told) == {("infra_error", None): 1, ("ok", 1.0): 1, ("task_failed", -1.0): 1}
    assert len(pool.runs.keys) == len(pool.runs.resets) == 3
    assert drive.gateway.seen.count("POST episodes") == 9
    assert drive.gateway.seen.count("POST reward") == 9
    assert await leases(pool) == 0


async def test_a_run_goes_on_when_the_gateway_was_restarted(
    start: gateways.Starter, stack: Stack, pool: AgentPool, drive: Drive
) -> None:
    there = drive.gateway.inner
    assert isinstance(there, Elsewhere)
    pool.runs.gate.clear()
    driving = asyncio.create_task(drive.run(groups=1))
    await until(lambda: pool.runs.running == 2)
    there.url = None
    pool.runs.gate.set()
    await until(lambda: there.refused > 2)
    there.url = (await start()).url
    await driving
    assert sorted(str(episode.status) for episode in stack.ledger.episodes.all()) == ["ok", "task_failed"]


async def test_a_gateway_that_stays_away_ends_the_driver(stack: Stack, pool: AgentPool) -> None:
    async with EpisodeGateway(ADDRESS, away_s=0.3, transport=Elsewhere(None)) as gateway:
        with pytest.raises(AwayError, match=r"does not answer .*is it running"):
            await gateway.overview()


async def test_a_run_whose_pool_died_is_lost_and_repeated_at_the_next_pool(
    stack: Stack, pools: Start, pool: AgentPool, drive: Drive
) -> None:
    pool.runs.gate.clear()
    driving = asyncio.create_task(drive.run(groups=1))
    await until(lambda: pool.runs.running == 2)
    drive.pool.inner = Elsewhere(None)
    assert await pool.pool.stop(PATIENT_S) == 0
    await until(lambda: "waiting for the pool" in drive.said)
    drive.pool.inner = (await pools()).transport
    await driving
    told = Counter((episode.status, episode.reward) for episode in stack.ledger.episodes.all())
    assert told == {("infra_error", None): 2, ("ok", 1.0): 1, ("task_failed", -1.0): 1}


async def test_no_group_begins_while_many_samples_wait_for_the_trainer(
    stack: Stack, pool: AgentPool, drive: Drive
) -> None:
    pool.runs.ask = asks(stack)
    driving = asyncio.create_task(drive.run(most_ready=1, parallel=1))
    await until(lambda: "waiting for the trainer: 2 rollouts are ready" in drive.said)
    assert len(pool.runs.keys) == 2
    assert await leases(pool) == 0
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        for episode in stack.ledger.episodes.all():
            assert (await http.delete(f"/v1/episodes/{episode.id}")).status_code == 200
    await driving
    assert drive.display.tally.finished == 2


async def test_an_interrupted_driver_leaves_no_lease_and_no_open_episode(
    stack: Stack, pool: AgentPool, drive: Drive
) -> None:
    await drive.run(groups=1)
    pool.runs.gate.clear()
    driving = asyncio.create_task(again(drive).run(groups=3, parallel=3))
    await until(lambda: pool.runs.running == 3)
    driving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driving
    assert (await leases(pool), pool.runs.running) == (0, 0)
    assert stack.ledger.episodes.open() == []
    assert len(stack.ledger.episodes.all()) == 2


@pytest.mark.parametrize("held", ["POST episodes", "POST reward"])
async def test_an_interruption_while_the_gateway_answers_leaves_nothing_open(
    stack: Stack, pool: AgentPool, drive: Drive, held: str
) -> None:
    """The request has been carried out, and its answer is on the way."""
    arrived, go = asyncio.Event(), asyncio.Event()
    inner = drive.gateway.inner

    class Held(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            answer = await inner.handle_async_request(request)
            if f"{request.method} {request.url.path.rsplit('/', 1)[-1]}" == held:
                await answer.aread()
                arrived.set()
                await go.wait()
            return answer

    drive.gateway.inner = Held()
    driving = asyncio.create_task(drive.run(groups=1, parallel=1))
    await arrived.wait()
    driving.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await driving
    assert stack.ledger.episodes.open() == []
    assert [episode.reward for episode in stack.ledger.episodes.all()] == ([-1.0] if held == "POST reward" else [])
    assert await leases(pool) == 0


async def test_an_episode_whose_replies_do_not_end_is_deleted_and_run_again(
    stack: Stack, pool: AgentPool, drive: Drive
) -> None:
    stuck: list[str] = []

    async def quiet(owner: str, seconds: float) -> int:
        """The replies of the first episode never end."""
        stuck.append(owner)
        return int(owner == stuck[0])

    stack.service.episodes._quiet = quiet
    await drive.run(groups=1, parallel=1)
    assert sorted(str(episode.status) for episode in stack.ledger.episodes.all()) == ["ok", "task_failed"]
    assert len(pool.runs.keys) == 3
    assert "replies of the episode are under way" in drive.said


async def test_a_later_process_goes_on_with_the_groups_that_are_not_finished(
    stack: Stack, pool: AgentPool, drive: Drive, tmp_path: Path
) -> None:
    pool.runs.ends += [SOLVED, FAILED, SOLVED]
    await drive.run(groups=1, parallel=1, records=tmp_path)
    second = again(drive)
    pool.runs.gate.clear()
    driving = asyncio.create_task(second.run(groups=3, parallel=1, records=tmp_path))
    await until(lambda: pool.runs.running == 1)
    driving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driving
    with open(tmp_path / GROUPS, "a") as file:
        file.write('{"number": 1, "state": "fini')  # a crash

    pool.runs.gate.set()
    third = again(drive)
    await third.run(groups=3, records=tmp_path)
    assert third.display.tally.finished == 2
    finished = [line for line in lines(tmp_path / GROUPS) if line["state"] == "finished"]
    assert sorted(line["number"] for line in finished) == [0, 1, 2]
    assert len({line["group"] for line in finished}) == 3
    await again(drive).run(groups=3, records=tmp_path)
    assert len(pool.runs.keys) == 2 + 1 + 4
    with pytest.raises(ConfigError, match="is of another run \\(tasks differ\\); use another folder"):
        await again(drive).run(tasks=["hard"], records=tmp_path)


async def test_what_every_run_is_refused_ends_the_driver_and_leaves_nothing(
    stack: Stack, pool: AgentPool, drive: Drive
) -> None:
    with pytest.raises(ConfigError, match="the pool refuses to run the agent: this pool offers no harness 'other'"):
        await drive.run(agent=replace(AGENT, harness="other"))
    assert (await leases(pool), stack.ledger.episodes.open()) == (0, [])


@pytest.mark.parametrize(
    ("reward", "score", "told"), [("partial", 2.0, "not from 0 to 1"), ("raw", 3.0, "from -1 to 1")]
)
async def test_a_score_that_is_no_reward_is_refused(
    stack: Stack, pool: AgentPool, drive: Drive, reward: Any, score: float, told: str
) -> None:
    pool.runs.ends += [Verdict(status="ok", score=score)]
    with pytest.raises(ConfigError, match=f"{told}.*use --reward binary"):
        await drive.run(parallel=1, agent=replace(AGENT, reward=reward))
    assert stack.ledger.episodes.open() == []


async def test_an_episode_that_expired_is_lost(stack: Stack, pool: AgentPool, drive: Drive) -> None:
    pool.runs.gate.clear()
    driving = asyncio.create_task(drive.run(groups=1, parallel=1))
    await until(lambda: pool.runs.running == 1)
    stack.clock[0] += 1_000_000
    await stack.service.episodes.sweep()
    pool.runs.gate.set()
    await driving
    assert "has ended with status 'expired'" in drive.said
    assert drive.display.tally.finished == 1


def test_each_epoch_has_all_tasks_in_an_order_of_the_seed() -> None:
    tasks = [f"task-{number}" for number in range(6)]

    def order(seed: int) -> list[tuple[int, str]]:
        plan = Plan(tasks=tasks, group_size=2, parallel=1, groups=12, tries=1, most_ready=1, seed=seed, metadata={})
        return list(plan.schedule())

    assert order(1) == order(1) != order(2)
    assert [number for number, _ in order(1)] == list(range(12))
    named = [task for _, task in order(1)]
    assert sorted(named[:6]) == sorted(named[6:]) == tasks
    assert named[:6] != named[6:]
