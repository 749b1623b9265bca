"""A judge that answers garbage, is cut off, fails or hangs trains nothing and says so; when it is mended, learning goes on.

Client, gateway, ledger, judge loop and the judge's server are real and talk HTTP; only the models are stand-ins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from lab.testkit.engine import mock_engine, serve
from lab.testkit.tiny_random import build_tokenizer
from lab.testkit.waiting import eventually
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import create_app
from openclaw.gateway.chat import ChatService
from openclaw.judge.voting import CASTINGS
from openclaw.judge.wiring import JudgeLoop, build_judge_loop
from openclaw.judge.worker import GAVE_UP, NO_QUORUM
from openclaw.ledger.store import Ledger
from tests.helpers.broken_judge import FAILURES, BrokenJudge

pytestmark = pytest.mark.slow

VOTES, ATTEMPTS, TRIES = 2, 2, 3
REPLY = "The sum is five."
PATIENCE = 120.0
SHORT = 1.0
"""Seconds that a hanging judge gets; nothing else waits for it."""
INVALID = {"words": "no_box", "two boxes": "other_box", "cut": "cut_off"}


@dataclass
class Bench:
    """A running gateway with its judge loop."""

    client: httpx.AsyncClient
    ledger: Ledger
    judge: BrokenJudge
    loop: JudgeLoop
    registry: CollectorRegistry
    said: list[dict[str, Any]] = field(default_factory=list)

    async def say(self, *words: str) -> None:
        """Send user messages, each after the reply to the one before."""
        for text in words:
            self.said.append({"role": "user", "content": text})
            answer = await self.client.post("/v1/chat/completions", json={"messages": self.said})
            assert answer.status_code == 200, answer.text
            self.said.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]})

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def patience(self, seconds: float) -> None:
        """Let the judge have ``seconds`` for a turn, and as long for a request."""
        worker, engine = self.loop.worker, self.loop.engines[0]
        worker._settings = replace(worker._settings, timeout=seconds, first_pause=0.01, longest_pause=0.01)
        engine._client.timeout = httpx.Timeout(seconds)
        engine._backoff = 0.0


@asynccontextmanager
async def bench(kind: str, model: Path, folder: Path) -> AsyncIterator[Bench]:
    tokenizer = build_tokenizer()
    reply = [*tokenizer.encode(REPLY, add_special_tokens=False), tokenizer.eos_token_id]
    judge = BrokenJudge()
    async with mock_engine(lambda _: reply) as policy, serve(judge.app) as judge_url:
        where: dict[str, Any] = (
            {"judge_base_url": f"{judge_url}/v1", "judge_model": "big"}
            if kind == "endpoint"
            else {"judge_url": judge_url, "judge_tokenizer": str(model)}
        )
        config = RuntimeConfig(
            policy_url=policy.url,
            tokenizer=str(model),
            ledger=str(folder / "ledger.sqlite"),
            method="openclaw_rl_method.BinaryRL",
            prm_m=VOTES,
            judge_attempts=ATTEMPTS,
            **where,
        )
        config.validate()
        ledger, registry = Ledger(folder / "ledger.sqlite"), CollectorRegistry()
        loop = build_judge_loop(config, ledger, lambda *_: [1], registry)
        loop.engines[1].answers = _up  # the policy's stand-in streams, which the probe does not read
        service = ChatService(config, tokenizer, ledger, registry, on_pending=loop.notify)
        stop = asyncio.Event()
        running = asyncio.create_task(loop.run(stop))
        async with serve(create_app(service, registry)) as url:
            async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE) as client:
                found = Bench(client, ledger, judge, loop, registry)
                found.patience(PATIENCE)
                yield found
        stop.set()
        await running
        ledger.close()


async def _up() -> bool:
    return True


@pytest.mark.parametrize("kind", ["endpoint", "engine"])
@pytest.mark.parametrize("mode", list(INVALID))
async def test_answers_that_are_no_votes_train_nothing(
    kind: str, mode: str, tiny_random_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(kind, tiny_random_model, tmp_path) as found:
        found.judge.mode = mode
        await found.say("What is 2 + 3?", "Without bold, please.")
        await eventually(lambda: found.count("openclaw_judge_turns_total", outcome=NO_QUORUM), 1.0, PATIENCE)
        assert found.ledger.views.counts()["turn_reasons"] == {NO_QUORUM: 1}
        assert found.judge.asked == VOTES * CASTINGS
        assert found.count("openclaw_judge_votes_total", judge="prm", value=INVALID[mode]) == VOTES
        lines = [record.getMessage() for record in caplog.records if record.name == "openclaw.judge.worker"]
        assert len(lines) == 1
        assert f"trains nothing, too few of the judge's answers are votes (prm {INVALID[mode]}: {VOTES})" in lines[0]
        await _mended(found)


@pytest.mark.parametrize("kind", ["endpoint", "engine"])
@pytest.mark.parametrize("mode", FAILURES)
async def test_a_judge_that_fails_trains_nothing_and_is_given_up(
    kind: str, mode: str, tiny_random_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(kind, tiny_random_model, tmp_path) as found:
        found.judge.mode = mode
        if mode == "hangs":
            found.patience(SHORT)
        await found.say("What is 2 + 3?", "Without bold, please.")
        await eventually(lambda: found.count("openclaw_judge_turns_total", outcome=GAVE_UP), 1.0, PATIENCE)
        assert found.ledger.views.counts()["turn_reasons"] == {GAVE_UP: 1}
        assert found.judge.asked <= ATTEMPTS * VOTES * TRIES
        failures = sum(found.count("openclaw_judge_failures_total", kind=name) for name in ("unavailable", "timeout"))
        assert failures == ATTEMPTS
        lines = [record.getMessage() for record in caplog.records if record.name == "openclaw.judge.worker"]
        assert ["given up" in line for line in lines] == [False] * (ATTEMPTS - 1) + [True]
        found.patience(PATIENCE)
        await _mended(found)


async def _mended(found: Bench) -> None:
    """Check that nothing is to be trained, and that the next turn is once the judge answers properly."""
    assert found.ledger.samples.ready_count() == 0
    found.judge.mode = "good"
    await found.say("Still bold!")
    await eventually(found.ledger.samples.ready_count, 1, PATIENCE)
    [sample] = found.ledger.samples.claim(0, 5)
    assert sample.reward == -1.0
