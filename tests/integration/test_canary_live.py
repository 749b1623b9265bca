"""Two real engines and a gate that tries each update on one of them first, under live traffic from end to end.

One story: a healthy update goes to one engine, then to both; one that is broken on its way never reaches the other engine; the first
engine is killed while it has the next one. Every conversation meanwhile gets all its replies.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import defaultdict
from pathlib import Path

import httpx
import psutil
import pytest
from openai import AsyncOpenAI

from lab.testkit.live_run import LiveRun, talk, wait_until
from lab.testkit.processes import reachable_from_outside
from openclaw.engine.canary import NAME, Share
from openclaw.ledger.store import Ledger
from tests.helpers.broken_canary import FLAG
from tests.helpers.driver import live_version

TALKERS = 2
TURNS = 7
"""More than the replies of all talkers' conversations, so that a trial stays open when no other conversation begins."""
LOOK_SECONDS = 0.2
"""A trial lasts many times as long, and a look costs an engine milliseconds."""
SETTINGS = {
    **{"NUM_GPUS": 4, "ROLLOUT_GPUS": 2, "GATE": 1, "GATE_CANARY": 0.5, "BATCH_SIZE": 4, "NUM_ROLLOUT": 1000},
    **{"OPENCLAW_CANARY_TURNS": TURNS, "OPENCLAW_CANARY_SECONDS": 300, "OPENCLAW_CANARY_SLOWDOWN": 1000},
    # The gate's other checks accept everything, so that the engine's own answers decide.
    **{"OPENCLAW_GATE_DRIFT": 1000, "OPENCLAW_GATE_JUMP": 1000, "OPENCLAW_GATE_DEGENERATE": 1},
    **{"OPENCLAW_GATE_FEWEST": 1000, "OPENCLAW_FUSES": "off"},
}


class Talkers(threading.Thread):
    """Has conversations until told to stop; with ``hold`` none begins while the share is open."""

    def __init__(self, run: LiveRun) -> None:
        super().__init__(daemon=True)
        self.stops, self.hold = threading.Event(), threading.Event()
        self.failures: list[BaseException] = []
        self.replies: list[str] = []
        self._parked: set[int] = set()
        self._run, self._note = run, run.folder / NAME

    def open_trial(self) -> Share:
        """Hold on while a share is open, and return it; no reply is under way then, so it stays open."""
        self._parked.clear()
        self.hold.set()
        wait_until(lambda: len(self._parked) == TALKERS or None, lambda: f"a trial:\n{self._run.text()[-6000:]}")
        return Share(**json.loads(self._note.read_text()))

    def run(self) -> None:
        async def one(number: int, client: AsyncOpenAI) -> None:
            rng, count = random.Random(number), 0
            while not self.stops.is_set():
                if self.hold.is_set() and self._note.exists():
                    self._parked.add(number)
                    await asyncio.sleep(0.05)
                    continue
                self._parked.discard(number)
                count += 1
                try:
                    self.replies += await talk(client, rng, f"talker-{number}-{count}", stream=count % 2 == 0)
                except Exception as error:  # noqa: BLE001 - the test looks at it
                    self.failures.append(error)

        async def everyone() -> None:
            async with AsyncOpenAI(base_url=self._run.base_url, api_key="none", max_retries=0, timeout=600.0) as client:
                await asyncio.gather(*(one(number, client) for number in range(TALKERS)))

        asyncio.run(everyone())


class Versions(threading.Thread):
    """Looks again and again which versions each engine says it has."""

    def __init__(self, urls: list[str]) -> None:
        super().__init__(daemon=True)
        self.seen: dict[str, list[str]] = defaultdict(list)
        self.stops = threading.Event()
        self._urls = urls

    def run(self) -> None:
        while not self.stops.wait(LOOK_SECONDS):
            for url in self._urls:
                version = live_version(url)
                if version is not None and self.seen[url][-1:] != [version]:
                    self.seen[url].append(version)


def engine_at(run: LiveRun, url: str) -> psutil.Process:
    """The server's process."""
    words = "sglang_utils.server", f"--port {url.rpartition(':')[2]}"
    found = [each for each in run.family() if all(word in " ".join(each.cmdline()) for word in words)]
    return min(found, key=psutil.Process.create_time)


def in_order(wanted: list[str], seen: list[str]) -> bool:
    """Whether ``seen`` has the wanted items one after the other, and maybe others in between."""
    rest = iter(seen)
    return all(each in rest for each in wanted)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_one_engine_is_first(repository: Path, tmp_path: Path) -> None:
    from lab.tiny_models.build import ensure_built

    hook = ("--rollout-data-postprocess-path", "tests.helpers.broken_canary.install")
    run = LiveRun(repository, tmp_path, ensure_built(0), "combine", *hook, **SETTINGS)
    talkers = Talkers(run)

    def says(words: str) -> str:
        """Wait until the run says so, and return the line."""
        wait_until(lambda: words in run.text() or None, lambda: f"{words!r}:\n{run.text()[-6000:]}")
        return next(line for line in run.text().splitlines() if words in line)

    def routed() -> set[str]:
        return {each["url"] for each in httpx.get(f"{router}/workers").json()["workers"]}

    try:
        run.wait_ready()
        router = says("policy engine: ").split()[-1]
        urls = routed()
        assert not reachable_from_outside(run.family()), "gateway, engines, router, judge, trainer and Ray"
        versions = Versions(list(urls))
        versions.start()
        talkers.start()
        share = talkers.open_trial()
        first, (other,) = share.url, urls - {share.url}
        served, healthy = str(int(share.version) - 1), share.version
        assert (live_version(first), live_version(other)) == (healthy, served)
        assert routed() == {other}
        (tmp_path / FLAG).touch()
        talkers.hold.clear()
        refused = says("is undone: version ")
        (tmp_path / FLAG).unlink()
        assert "its engine gives stored replies other log probabilities than the trainer" in refused
        broken = refused.split("is undone: version ")[1].split()[0]
        assert broken == str(int(healthy) + 1)

        share = talkers.open_trial()
        assert share.url == first
        assert int(share.version) > int(broken), "a refused version's number is not used again"
        assert (live_version(first), live_version(other)) == (share.version, healthy)
        assert in_order([served, healthy, broken, healthy, share.version], versions.seen[first])
        engine_at(run, first).kill()
        talkers.hold.clear()
        says("1 engine(s) restarted, sending the weights")
        wait_until(
            lambda: share.version in versions.seen[other] or None, lambda: f"{versions.seen}\n{run.text()[-4000:]}"
        )
        assert in_order([served, healthy, share.version], versions.seen[other])
        assert broken not in versions.seen[other]
        talkers.stops.set()
        talkers.join(300)
        assert not talkers.failures
    finally:
        talkers.stops.set()
        if run.process.poll() is None:
            run.stop()
    assert not (tmp_path / NAME).exists()
    ledger = Ledger(run.ledger_path)
    turns = {record.turn.id: record.turn for record in ledger.views.turn_records()}
    assert set(talkers.replies) <= set(turns)
    live = {step["weight_version"]: step["live_at"] for step in ledger.views.step_records()}
    spans = [(span.version, turn.finished_at) for turn in turns.values() for span in turn.weight_versions]
    assert any(at < live.get(version, 0.0) for version, at in spans), "some replies had an update before the others"
    begun_with = {turn.weight_versions[0].version for turn in turns.values() if turn.weight_versions}
    assert broken not in begun_with, "only a reply that outlasts `DRAIN_SECONDS` may go on with a refused version"
    decided = {each.weight_version: each for each in ledger.decisions.all()}
    kinds = [decided[version].kind for version in (healthy, broken, share.version)]
    assert kinds == ["step", "refused", "step"]
    assert decided[share.version].metrics["gate/canary_deaths"] == 1.0
    quarantined = {each.rollout_id for each in ledger.views.sample_records() if each.reason == "quarantine"}
    assert decided[broken].rollout_id in quarantined
