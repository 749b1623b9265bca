"""A live tiny run with an adapter per person: two people learn apart, one goes back, one leaves and is forgotten."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import closing
from itertools import count, islice
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from groundwork.people import mark_of
from lab.testkit.live_run import KEYS, LiveRun, keys_file, talk, wait_until
from openclaw.gate import rollback
from openclaw.inspect import main
from openclaw.ledger.store import Ledger
from openclaw.runtime.adapters import accepted_versions
from slime.weight_sync import people

FLAGS = {
    "ADAPTERS": "per-owner",
    "USE_LORA": 1,
    "OPENCLAW_PACE": "session",
    "OPENCLAW_QUIET_SECONDS": 1,
    "OPENCLAW_FUSES": "off",
    "GATE": 1,
    "OPENCLAW_GATE_SHARE": 0,  # else whole conversations are kept out of training
}
MARKER = "qx7marker"
MOST_SESSIONS = 6


@pytest.fixture
def run(repository: Path, tmp_path: Path) -> Iterator[LiveRun]:
    from lab.tiny_models.build import ensure_built

    keys = keys_file(tmp_path)
    run = LiveRun(repository, tmp_path / "run", ensure_built(0), "rl", OPENCLAW_API_KEYS_FILE=keys, **FLAGS)
    try:
        run.wait_ready()
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()


async def _ask(run: LiveRun, name: str, words: str) -> None:
    async with AsyncOpenAI(base_url=run.base_url, api_key=KEYS[name], max_retries=0, timeout=600.0) as client:
        await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": words}])


def session(run: LiveRun, name: str, number: int) -> set[str]:
    """Have a conversation; return the weight versions that answered."""

    async def hold() -> list[str]:
        async with AsyncOpenAI(base_url=run.base_url, api_key=KEYS[name], max_retries=0, timeout=600.0) as client:
            return await talk(client, random.Random(f"{name} {number}"), f"s{number}")

    replies = asyncio.run(hold())
    with closing(Ledger(run.ledger_path)) as ledger:
        return {span.version for reply in replies for span in ledger.turns.get(reply).weight_versions}


def live(run: LiveRun, name: str) -> str:
    with closing(Ledger(run.ledger_path)) as ledger:
        return ledger.samples.live_weight_version(name) or "0"


def settled(run: LiveRun) -> bool:
    """Whether nothing waits for the judge or for a step, and none is under way."""
    with closing(Ledger(run.ledger_path)) as ledger:
        pending, samples = ledger.views.counts()["turns"].get("pending", 0), ledger.samples
        return not (pending or samples.ready_count() or samples.untrained_leases() or samples.saved_not_live())


def learn(run: LiveRun, name: str, numbers: Iterator[int]) -> set[str]:
    """Have conversations until a person has a new version; return the versions that answered. Some scores teach nothing."""
    before, answered = live(run, name), set[str]()
    for number in islice(numbers, MOST_SESSIONS):
        answered |= session(run, name, number)
        wait_until(lambda: settled(run), lambda: f"no step was taken:\n{run.text()[-4000:]}")
        if live(run, name) != before:
            return answered
    raise AssertionError(f"{name} has no new version:\n{run.text()[-4000:]}")


def files_with(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_two_people_learn_apart_and_one_is_forgotten(run: LiveRun, tmp_path: Path) -> None:
    numbers = count()
    asyncio.run(_ask(run, "alice", f"{MARKER}, what is 2 plus 3?"))
    assert learn(run, "alice", numbers) <= {"0", "1"}, "the base answers first"
    assert live(run, "alice") == "1"
    assert learn(run, "bob", numbers) <= {"0", "1"}, "her update reaches nobody else"
    assert session(run, "alice", next(numbers)) <= {"1", "2"}
    learn(run, "alice", numbers)
    kept, of_bob = ([each.number for each in accepted_versions(run.folder, name)] for name in ("alice", "bob"))
    assert (kept[0], of_bob) == (int(live(run, "alice")), [1])
    assert kept[0] > 1

    oldest = accepted_versions(run.folder, "alice")[-1]
    assert rollback.main([str(run.folder), "--person", "alice", "--to", str(oldest.number)]) == 0
    again = live(run, "alice")
    assert int(again) > kept[0], "the oldest version serves under a new number"
    assert accepted_versions(run.folder, "alice")[0].sha256 == oldest.sha256
    assert live(run, "bob") == "1"
    assert again in session(run, "alice", next(numbers))

    assert main([str(run.folder), "export", "--person", "bob", "--to", str(tmp_path / "bobs")]) == 0
    assert people.digest_of(tmp_path / "bobs") == accepted_versions(run.folder, "bob")[0].sha256
    wait_until(lambda: settled(run), lambda: run.text()[-4000:])
    assert files_with(run.folder, MARKER)
    assert main([str(run.folder), "forget", "--person", "alice"]) == 0
    assert files_with(run.folder, MARKER) == []
    assert accepted_versions(run.folder, "alice") == ()
    assert not (people.people_folder(run.folder) / mark_of("alice")).exists()
    assert "0" in session(run, "alice", next(numbers)), "the base answers her again"
    assert session(run, "bob", next(numbers)) <= {"1", "2"}, "his adapter is as it was"
    learn(run, "alice", numbers)
    assert 1 in [each.number for each in accepted_versions(run.folder, "alice")], "she begins anew"
    assert run.stop() == 0
