"""A live tiny run with an adapter per person: two people learn apart, one goes back, one leaves and is forgotten."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from groundwork.people import mark_of
from lab.testkit.live_run import LiveRun, talk, wait_until
from openclaw.gate import rollback
from openclaw.inspect import main
from openclaw.ledger.store import Ledger
from openclaw.training.adapters import accepted_versions
from slime.weight_sync import people

KEYS = {"alice": "key-of-alice-0123456789", "bob": "key-of-bob-0123456789"}
FLAGS = {"ADAPTERS": "per-owner", "USE_LORA": 1, "OPENCLAW_PACE": "session", "OPENCLAW_QUIET_SECONDS": 1}


@pytest.fixture
def run(repository: Path, tmp_path: Path) -> Iterator[LiveRun]:
    from lab.tiny_models.build import ensure_built

    keys = tmp_path / "keys"
    keys.write_text("".join(f"{name}:{key}\n" for name, key in KEYS.items()))
    keys.chmod(0o600)
    own = {**FLAGS, "OPENCLAW_API_KEYS_FILE": keys, "OPENCLAW_FUSES": "off", "GATE": 1}
    run = LiveRun(repository, tmp_path / "run", ensure_built(0), "rl", **own)
    try:
        run.wait_ready()
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()


def session(run: LiveRun, name: str, number: int) -> list[str]:
    """Have a conversation; return the weight versions that answered."""

    async def hold() -> list[str]:
        async with AsyncOpenAI(base_url=run.base_url, api_key=KEYS[name], max_retries=0, timeout=600.0) as client:
            return await talk(client, random.Random(f"{name} {number}"), f"s{number}")

    replies = asyncio.run(hold())
    with closing(Ledger(run.ledger_path)) as ledger:
        return [span.version for reply in replies for span in ledger.turns.get(reply).weight_versions]


def live(run: LiveRun, name: str) -> str | None:
    with closing(Ledger(run.ledger_path)) as ledger:
        return ledger.samples.live_weight_version(name)


def files_with(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_two_people_learn_apart_and_one_is_forgotten(run: LiveRun, tmp_path: Path) -> None:
    assert set(session(run, "alice", 0)) == {"0"}, "the base answers"
    wait_until(lambda: live(run, "alice") == "1", lambda: f"alice has no version:\n{run.text()[-4000:]}")
    assert set(session(run, "bob", 0)) == {"0"}, "her update reaches nobody else"
    assert set(session(run, "alice", 1)) == {"1"}
    wait_until(lambda: (live(run, "alice"), live(run, "bob")) == ("2", "1"), lambda: run.text()[-4000:])
    book = people.Book(people.people_folder(run.folder)).lines()
    assert {mark: [version.number for version in versions] for mark, versions in book.items()} == {
        mark_of("alice"): [2, 1],
        mark_of("bob"): [1],
    }

    assert rollback.main([str(run.folder), "--person", "alice", "--to", "1"]) == 0
    assert live(run, "alice") == "3"
    assert set(session(run, "alice", 2)) == {"3"}

    assert main([str(run.folder), "export", "--person", "bob", "--to", str(tmp_path / "bobs")]) == 0
    assert people.digest_of(tmp_path / "bobs") == accepted_versions(run.folder, "bob")[0].sha256
    wait_until(lambda: live(run, "alice") == "4", lambda: run.text()[-4000:])
    with closing(Ledger(run.ledger_path)) as ledger:
        spoken = [turn.turn.id for turn in ledger.views.turn_records() if turn.turn.session_id.startswith("@alice:")]
    assert main([str(run.folder), "forget", "--person", "alice"]) == 0
    for text in (mark_of("alice"), *spoken):
        assert [path for path in files_with(run.folder / "checkpoints", text) if path.name == "ledger.sqlite"] == []
    assert accepted_versions(run.folder, "alice") == ()
    assert not (people.people_folder(run.folder) / mark_of("alice")).exists()
    assert set(session(run, "alice", 3)) == {"0"}, "the base answers her again"
    assert set(session(run, "bob", 1)) == {"1"}, "his adapter is as it was"
    wait_until(lambda: live(run, "alice") == "1", lambda: f"she begins anew:\n{run.text()[-4000:]}")
    assert run.stop() == 0
