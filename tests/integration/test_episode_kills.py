"""Pool, gateway or engine die by SIGKILL in the middle of a reply: nothing of the run survives, and another one is rewarded.

An agent program runs in a real sandbox; gateway, pool and driver are the real commands. The killed run has a whole reply
in the ledger and a second one under way, so there is something that could be trained by mistake.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from agentrl.processes import ProcessLedger
from agentrl.sandbox.bubblewrap import Bubblewrap
from lab.testkit.engine import mock_engine
from lab.testkit.live_engine import engine_arguments, live_engine
from lab.testkit.processes import assert_all_gone, title_of
from lab.testkit.tiny_random import build_tokenizer
from lab.testkit.waiting import eventually
from openclaw.ledger.episodes import Episode
from openclaw.ledger.store import Ledger
from openclaw.runtime.process import RuntimeSupervisor
from openclaw.training.rollout import LedgerDataSource, collect
from slime.contract.engine import StandInEngine
from slime.utils.types import Sample
from tests.helpers.killable_agent import ENDLESS, TURNS
from tests.helpers.killed_servers import SECONDS, Servers
from tests.helpers.rollout_args import rollout_args
from tests.helpers.sandboxes import REASON, groups_of, installed

REPOSITORY = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not installed(REPOSITORY), reason=REASON)
REWARDED = [("ok", 1.0), ("task_failed", -1.0)]
"""Status and reward of the two runs that may count, in their order: the first one solves the task."""
UNDER_WAY = 3
"""Tokens of the second reply that the engine has given out when the kill comes."""
MANY = 100_000


@asynccontextmanager
async def running(folder: Path, engine_url: str, model: Path) -> AsyncIterator[Servers]:
    """Run gateway, pool and driver, whose first run asks without end; afterwards none of them has left anything."""
    servers = Servers(folder, engine_url, model)
    (servers.runs / ENDLESS).touch()
    try:
        await servers.start()
        yield servers
    except BaseException:
        print(servers.said())
        raise
    finally:
        await asyncio.to_thread(servers.end)
    assert traces(servers) == set()
    assert await recorded_groups(servers) == 0


@asynccontextmanager
async def engine_of_replies() -> AsyncIterator[StandInEngine]:
    """Serve replies that all differ; the gate lets the first one through, and the beginning of the second."""
    tokenizer: Any = build_tokenizer()
    numbers = itertools.count(10)

    def reply(number: int) -> list[int]:
        text = f"This is the reply with the number {number}."
        return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]

    async with mock_engine(lambda _: reply(next(numbers))) as engine:
        engine.token_gate = asyncio.Semaphore(len(reply(10)) + UNDER_WAY)
        yield engine


def let_through(engine: StandInEngine) -> None:
    """Hold no token back any more."""
    assert engine.token_gate is not None
    for _ in range(MANY):
        engine.token_gate.release()


async def first_reply(servers: Servers) -> Episode:
    """Wait until the ledger has a whole reply of the first run; the runs that follow ask twice only."""
    ledger = Ledger(servers.ledger)
    try:
        async with asyncio.timeout(SECONDS):
            while not (found := [each for each in ledger.episodes.open() if ledger.episodes.counts(each).turns]):
                assert servers.driver.status() is None, servers.said()
                await asyncio.sleep(0.02)
    finally:
        ledger.close()
    (servers.runs / ENDLESS).unlink()
    return found[0]


async def second_reply(servers: Servers, engine: StandInEngine) -> Episode:
    """Wait until the second reply of the first run is under way; return its episode."""
    gate = engine.token_gate
    assert gate is not None

    def seen() -> tuple[int, bool]:
        assert not servers.ended_runs(), "the run has ended by itself"
        return len(engine.requests), gate.locked()

    await eventually(seen, (2, True), SECONDS)
    return await first_reply(servers)


def sandboxed(servers: Servers) -> list[psutil.Process]:
    """Return the pool's processes of the run: the sandbox, the agent program, and what it started."""
    family = servers.pool.family()
    titles = "\n".join(map(title_of, family))
    assert "bwrap" in titles
    assert "OPENAI_BASE_URL" in titles, "the agent program is not there"
    assert "trap '' TERM" in titles, "what the agent program started is not there"
    return family


def traces(servers: Servers) -> set[str]:
    """Return what the pool's sandboxes have on this machine besides processes: control groups, doors, other files."""
    provider = Bubblewrap()
    groups = {name for pid in servers.pool.pids for name in groups_of(provider, pid)}
    return groups | {path.name for path in servers.temporary.iterdir()}


async def recorded_groups(servers: Servers) -> int:
    """Return the number of process groups in the ledger of a pool that has ended."""
    ledger = ProcessLedger(servers.pool_ledger)
    try:
        return len(await ledger.groups())
    finally:
        ledger.close()


def collected(servers: Servers, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sample]:
    """Return the samples that a trainer gets, which are all that there are."""
    monkeypatch.setenv("OPENCLAW_LEDGER", str(servers.ledger))
    args = rollout_args(folder, rollout_batch_size=len(REWARDED))
    source = LedgerDataSource(args)
    assert source.ledger.samples.ready_count() == len(REWARDED)
    samples, _, _ = collect(args, 0, source, cast("RuntimeSupervisor", None))
    assert source.ledger.samples.ready_count() == 0
    source.dispose()
    return samples


def check_runs(servers: Servers, killed: Episode) -> int:
    """The driver kept two rewarded runs of one finished group, and the ledger has no others; return how many were lost."""
    runs = servers.ended_runs()
    (group,) = servers.ended_groups()
    assert (group["state"], group["rewards"]) == ("finished", [reward for _, reward in REWARDED])
    rewarded = [run for run in runs if run["reward"] is not None]
    assert [(run["seat"], run["status"], run["reward"]) for run in rewarded] == [
        (seat, *told) for seat, told in enumerate(REWARDED)
    ]
    assert (runs[0]["episode"], runs[0]["status"]) == (killed.id, "infra_error")
    assert len({run["episode"] for run in runs}) == len(runs)
    return len(runs) - len(rewarded)


def check_ledger(servers: Servers, killed: Episode, samples: list[Sample]) -> None:
    """The samples are the replies of the rewarded episodes, each token once; no other episode has a reward."""
    ledger = Ledger(servers.ledger)
    try:
        kept = {str(run["episode"]): run for run in servers.ended_runs() if run["episode"] is not None}
        episodes = {each.id: each for each in ledger.episodes.all()}
        assert episodes.keys() == kept.keys()
        assert not ledger.episodes.open()
        for name, episode in episodes.items():
            assert (episode.status, episode.reward) == (kept[name]["status"], kept[name]["reward"])
        assert ledger.episodes.counts(episodes[killed.id]).turns >= 1
        replies = {
            name: [turn.response_ids for turn in ledger.episodes.turns(episode)]
            for name, episode in episodes.items()
            if episode.reward is not None
        }
    finally:
        ledger.close()
    assert [len(turns) for turns in replies.values()] == [TURNS] * len(REWARDED)
    trained = {name: Counter[int]() for name in replies}
    for sample in samples:
        start = len(sample.tokens) - sample.response_length
        assert sample.loss_mask is not None
        trained[sample.metadata["episode"]].update(
            token for token, mask in zip(sample.tokens[start:], sample.loss_mask, strict=True) if mask
        )
    assert trained == {name: Counter(itertools.chain(*turns)) for name, turns in replies.items()}


async def gone(processes: list[psutil.Process]) -> None:
    """Wait until processes have ended, while this process goes on as the engine."""
    await asyncio.to_thread(assert_all_gone, processes)


async def test_a_killed_pool(short_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine_of_replies() as engine, running(short_path, engine.url, tiny_random_model) as servers:
        killed = await second_reply(servers, engine)
        family, left = sandboxed(servers), traces(servers)
        servers.pool.kill()
        await gone(family)
        let_through(engine)
        assert left
        assert left == traces(servers), "the next pool has something to remove"
        await servers.pool.start()
        assert not left & traces(servers)
        await servers.driven()
        assert check_runs(servers, killed) == 1
    check_ledger(servers, killed, collected(servers, short_path, monkeypatch))


async def test_a_killed_gateway(short_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine_of_replies() as engine, running(short_path, engine.url, tiny_random_model) as servers:
        killed = await second_reply(servers, engine)
        family = sandboxed(servers)
        family += servers.gateway.kill()
        await gone(family)
        await eventually(lambda: traces(servers), set(), SECONDS)
        let_through(engine)
        assert not servers.ended_runs(), "the driver waits for the gateway, which must hear that the run is lost"
        await servers.gateway.start()
        await servers.driven()
        assert check_runs(servers, killed) == 1
    check_ledger(servers, killed, collected(servers, short_path, monkeypatch))


@pytest.mark.long
async def test_a_killed_engine(
    short_path: Path, tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real engine, which comes back later than requests wait for it: runs are lost until then."""
    with live_engine(engine_arguments(tiny_random_model, tmp_path)) as engine:
        async with running(short_path, engine.url(), tiny_random_model) as servers:
            killed = await first_reply(servers)
            family = sandboxed(servers)
            family += psutil.Process(engine.status()["pid"]).children(recursive=True)
            engine.kill()
            await gone(family)
            await eventually(lambda: len(servers.ended_runs()) > 0, True, SECONDS)
            await asyncio.to_thread(engine.start)
            await servers.driven()
            assert check_runs(servers, killed) >= 1
    check_ledger(servers, killed, collected(servers, short_path, monkeypatch))
