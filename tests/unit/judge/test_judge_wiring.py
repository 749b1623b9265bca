"""The judge loop as a runtime process builds it: configuration, HTTP, tokenizer, method, ledger together."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from groundwork.exceptions import ConfigError
from lab.testkit.ledger_records import USER_NEXT, make_turn
from lab.testkit.waiting import eventually
from openclaw.config.runtime import RuntimeConfig
from openclaw.judge import wiring
from openclaw.judge.wiring import build_judge_loop, watch_outages
from openclaw.ledger.store import Ledger
from tests.helpers.threaded_server import serving

HINT_ANSWER = "[HINT_START]Write plain prose.[HINT_END] \\boxed{1}"


class EngineHandler(BaseHTTPRequestHandler):
    """Answers votes with a hint and scores every token with minus the length of the input."""

    def do_POST(self) -> None:
        payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer: dict[str, Any] = {"text": HINT_ANSWER, "meta_info": {"finish_reason": {"type": "stop"}}}
        if payload.get("return_logprob"):
            ids, start = payload["input_ids"], payload["logprob_start_len"]
            entries = [[None, ids[start], None], *([-float(len(ids)), token, None] for token in ids[start + 1 :])]
            answer = {"text": "", "meta_info": {"input_token_logprobs": entries, "weight_version": "3"}}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def url() -> Iterator[str]:
    with serving(EngineHandler) as url:
        yield url


class AwayEngine:
    """An engine whose port answers nobody until `come_back`."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), EngineHandler, bind_and_activate=False)
        self._server.server_bind()
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def come_back(self) -> None:
        self._server.server_activate()
        self._thread.start()

    def stop(self) -> None:
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


@pytest.fixture
def away() -> Iterator[AwayEngine]:
    engine = AwayEngine()
    yield engine
    engine.stop()


@pytest.fixture
def config(url: str, tiny_random_model: Path) -> RuntimeConfig:
    return RuntimeConfig(
        policy_url=url,
        judge_url=url,
        judge_tokenizer=str(tiny_random_model),
        judge_prompts="brief",
        method="openclaw_combine_method.Combine",
        min_response_tokens=1,
    )


async def test_configured_loop_judges_and_closes_its_connections(config: RuntimeConfig, tmp_path: Path) -> None:
    ledger, registry = Ledger(tmp_path / "ledger.sqlite"), CollectorRegistry()
    turn = make_turn()

    def render(messages: Any, *_: Any) -> list[int]:
        return turn.prompt_ids if messages == turn.messages else [1, 2, 3, 4, 5, 6]

    loop = build_judge_loop(config, ledger, render, registry)
    stop = asyncio.Event()
    task = asyncio.create_task(loop.run(stop))
    ledger.turns.record(turn)
    ledger.turns.record_next_state(turn.id, USER_NEXT, 102.0)
    loop.notify()
    async with asyncio.timeout(20.0):
        while ledger.samples.ready_count() == 0:
            await asyncio.sleep(0.005)
    stop.set()
    await asyncio.wait_for(task, 10.0)
    [sample] = ledger.samples.claim(0, 1)
    assert sample.reward == 1.0
    assert sample.teacher_log_probs == pytest.approx([value - 2.0 for value in turn.response_logprobs])
    [judged] = ledger.judging.judged("session")
    assert judged.verdict.teacher_versions == ("3",)
    assert all(engine._client.is_closed for engine in loop.engines)


async def test_a_judge_that_comes_back_is_noticed_long_before_the_pause_is_over(
    config: RuntimeConfig, away: AwayEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wiring, "watch_outages", partial(watch_outages, probe_seconds=0.05))
    ledger = Ledger(tmp_path / "ledger.sqlite")
    loop = build_judge_loop(replace(config, judge_url=away.url), ledger, lambda *_: [1, 2, 3], CollectorRegistry())
    loop.worker._settings = replace(loop.worker._settings, first_pause=3600.0, longest_pause=3600.0)
    loop.engines[0]._retries = 0
    looks, look = [], loop.engines[0].answers

    async def answers() -> bool:
        looks.append(await look())
        return looks[-1]

    monkeypatch.setattr(loop.engines[0], "answers", answers)
    turns = [make_turn(f"turn-{number}", session_id=f"s{number}") for number in range(3)]
    for turn in turns:
        ledger.turns.record(turn)
        ledger.turns.record_next_state(turn.id, USER_NEXT, 102.0)
    stop = asyncio.Event()
    task = asyncio.create_task(loop.run(stop))
    await eventually(lambda: len(ledger.judging.pending(10)), 0)
    await eventually(lambda: False in looks, True)
    away.come_back()
    await eventually(ledger.samples.ready_count, len(turns))
    stop.set()
    await asyncio.wait_for(task, 10.0)


@pytest.mark.parametrize("missing", ["policy_url", "judge_url", "judge_tokenizer", "method"])
def test_what_is_not_named_is_asked_for(config: RuntimeConfig, tmp_path: Path, missing: str) -> None:
    with pytest.raises(ConfigError, match="OPENCLAW_"):
        build_judge_loop(
            replace(config, **{missing: None}), Ledger(tmp_path / "l"), lambda *_: [1], CollectorRegistry()
        )


async def test_the_variables_reach_the_worker(config: RuntimeConfig, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"hygiene": "truncated,off_language", "judge_quorum": 0.9, "judge_attempts": 3}
    changes |= {"majority_vote_threshold": 0.7, "judge_timeout": 9.0, "judge_concurrency": 5}
    ledger = Ledger(tmp_path / "ledger.sqlite")
    loop = build_judge_loop(replace(config, **changes), ledger, lambda *_: [1], CollectorRegistry())
    limits, settings = loop.worker._limits, loop.worker._settings
    assert set(limits.rules) == {"truncated", "off_language"}
    assert (settings.quorum, settings.attempts, settings.vote_threshold) == (0.9, 3, 0.7)
    assert (settings.timeout, settings.concurrency) == (9.0, 5)
    for engine in loop.engines:
        await engine.close()
