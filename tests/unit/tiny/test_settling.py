"""A run has settled when its judge has judged everything and no update is due or under way; seen on a real ledger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import fields
from pathlib import Path

import pytest

from groundwork.paused import pause
from lab.personal import run
from lab.personal.run import Trainer
from lab.testkit.ledger_records import USER_NEXT, judged_sample, make_turn
from lab.tiny_demo.launched import LaunchedRun, RunFailed, Settings
from openclaw.credit.baseline import record_judged
from openclaw.ledger.records import Verdict
from openclaw.ledger.store import Ledger
from openclaw.runtime.where import ARGUMENTS_NAME, SETTINGS_NAME
from slime.args import Arguments


class Up(LaunchedRun):
    """A run whose process is never looked at."""

    def check(self) -> None:
        """Do nothing."""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(tmp_path / "ledger.sqlite")) as opened:
        yield opened


@pytest.fixture
def make(tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trainer]:
    monkeypatch.setattr(run, "POLL_SECONDS", 0.001)

    def made(batch: int = 2, interval: int = 1, **variables: str) -> Trainer:
        arguments = {"rollout_batch_size": batch, "update_weights_interval": interval}
        assert set(arguments) <= {each.name for each in fields(Arguments)}
        (tmp_path / ARGUMENTS_NAME).write_text(json.dumps(arguments))
        (tmp_path / SETTINGS_NAME).write_text(json.dumps(variables))
        return Trainer(Up(Settings("rl", 1, 0, 1, tmp_path, tmp_path)), ledger)

    return made


async def settles(run: Trainer) -> bool:
    """Return whether `settle` returns although nothing changes."""
    waiting = asyncio.ensure_future(run.settle())
    for _ in range(5):
        await asyncio.sleep(0.002)
        if waiting.done():
            return True
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    return False


async def test_from_a_reaction_to_live_weights(make: Callable[..., Trainer], ledger: Ledger) -> None:
    run = make()
    assert await settles(run)
    ledger.turns.record(make_turn("a"))
    assert await settles(run), "a reply without a reaction teaches nothing"
    ledger.turns.record_next_state("a", USER_NEXT, 102.0)
    assert not await settles(run), "it waits for the judge"
    record_judged(ledger, "a", Verdict(score=0), [], "no_score")
    assert await settles(run), "it was judged, and gives no sample"


async def test_an_update_is_waited_for(make: Callable[..., Trainer], ledger: Ledger) -> None:
    run, held_back = make(), make(interval=4)
    judged_sample(ledger, "a", session_id="a")
    assert await settles(run), "half a batch starts nothing"
    judged_sample(ledger, "b", session_id="b")
    assert not await settles(run), "an update is due"
    ledger.samples.claim(0, 2)
    assert not await settles(run), "its weights are not live"
    assert await settles(held_back), "they will not be for several updates"
    ledger.samples.record_step(0, "1", 103.0, 104.0)
    assert await settles(run)
    assert (run.updates, run.samples_trained, run.ready) == (1, 2, 0)


async def test_a_run_that_stands_still_is_an_error(
    make: Callable[..., Trainer], ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "STUCK_SECONDS", 0.0)
    ledger.turns.record(make_turn("a"))
    ledger.turns.record_next_state("a", USER_NEXT, 102.0)
    with pytest.raises(RunFailed, match="nothing changed for 0 s: 1 turns wait for the judge, 0 samples are"):
        await make().settle()


async def test_a_fuse_that_paused_training_ends_the_wait(make: Callable[..., Trainer], tmp_path: Path) -> None:
    pause(tmp_path, 3, "rollout/response_len/of_limit>0.9 (it is 0.91)")
    with pytest.raises(RunFailed, match=r"training is paused since rollout 3: rollout/response_len/of_limit>0.9"):
        await make().settle()


async def test_at_the_pace_of_sessions_no_sample_is_left(make: Callable[..., Trainer], ledger: Ledger) -> None:
    run = make(batch=9, OPENCLAW_PACE="session")
    judged_sample(ledger, "a")
    assert not await settles(run), "its session is over, so a step is due"
    ledger.samples.claim(0, 1)
    assert not await settles(run)
    ledger.samples.record_step(0, "1", 103.0, 104.0)
    assert await settles(run)


async def test_practice_is_waited_for(make: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([4.0, 4.0, 5.0, 6.0])
    asked: list[str | None] = []

    async def counts(run: Up, key: str | None = None) -> dict[str, float]:
        asked.append(key)
        return {"practice_idle": next(looks)}

    monkeypatch.setattr(Up, "gateway_counts", counts)
    await make(OPENCLAW_PRACTICE="trial").settle()
    assert len(asked) == 4, "one search may have begun before the last step; the next one found nothing"
