"""On a server with several keys no route tells an owner, or a stranger, how much others talk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from groundwork.paused import note_waiting, pause, resume
from lab.testkit.ledger_records import make_turn
from openclaw.config.bounds import WRONG_KEYS
from openclaw.credit.baseline import record_judged
from openclaw.gateway import turns
from openclaw.ledger.records import Verdict
from openclaw.owners import stored_id
from openclaw.training.samples import make_sample
from tests.unit.gateway.conftest import Stack, Starter
from tests.unit.gateway.test_lessons import KEYS, as_key

COUNTS = {"sessions", "people_paused", "people_refused", "gate", "certificate"}


@pytest.fixture
async def shared(start: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """A server with several keys, whose gate has refused updates."""
    monkeypatch.setattr(turns, "OFFER_SECONDS", 60.0)
    keys = tmp_path / "keys"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    stack: Stack = await start(api_keys_file=str(keys))
    stack.service.config = replace(stack.service.config, run_dir=str(tmp_path))
    for rollout_id in range(3):
        stack.ledger.decisions.record(rollout_id, "refused", "1", "worse", by_margin=True)
    return stack


async def health(stack: Stack, headers: dict[str, str] | None = None) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, headers=headers) as client:
        answer = await client.get("/healthz")
    assert answer.status_code == 200
    return answer.json()


async def test_health_tells_numbers_to_an_admin_alone(shared: Stack, tmp_path: Path) -> None:
    for headers in ({}, as_key("alice"), {"x-api-key": "wrong"}):
        assert not COUNTS & (await health(shared, headers)).keys()
    told = await health(shared, as_key("root (admin)"))
    assert told["sessions"] == 0
    assert told["gate"].startswith("the gate refused 3 batches lately")
    note_waiting(tmp_path, "training waits for the hours of OPENCLAW_TRAIN_WHEN=22:00-06:00")
    assert (await health(shared))["training"] == "training waits for the hours of OPENCLAW_TRAIN_WHEN=22:00-06:00"
    note_waiting(tmp_path, "training waits until nobody talks: requests under way: 3", of_people=True)
    for headers in ({}, as_key("alice"), {"x-api-key": "wrong"}):
        assert "training" not in await health(shared, headers), "it tells that others talk"
    assert (await health(shared, as_key("root (admin)")))["training"].endswith("under way: 3")
    pause(tmp_path, 77, "train/ppo_kl>0.5")
    assert (await health(shared))["training"] == "training is paused: train/ppo_kl>0.5"
    assert "rollout 77" in (await health(shared, as_key("root (admin)")))["training"]
    resume(tmp_path)


async def test_health_is_no_door_for_guesses(shared: Stack) -> None:
    for number in range(WRONG_KEYS.most):
        await health(shared, {"x-api-key": f"guess-{number}"})
    assert "sessions" not in await health(shared, as_key("root (admin)")), "a right guess tells nothing"


async def test_only_an_admin_learns_the_number_of_a_step(shared: Stack) -> None:
    turn = make_turn("chatcmpl-1", session_id=stored_id("alice", "s"))
    shared.ledger.turns.record(turn)
    shared.ledger.turns.record_next_state(turn.id, [{"role": "user", "content": "No."}], 1001.0)
    record_judged(shared.ledger, turn.id, Verdict(score=-1), [make_sample(turn, -1.0, score=-1)], None)
    shared.ledger.samples.claim(77, 1)
    told = {}
    for name in ("alice", "root (admin)"):
        async with httpx.AsyncClient(base_url=shared.url, trust_env=False, headers=as_key(name)) as client:
            told[name] = (await client.get(f"/v1/turns/{turn.id}")).json()
    assert told["root (admin)"]["step"] == 77
    assert told["alice"] == {**told["root (admin)"], "step": None}
