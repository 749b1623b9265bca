"""From a chat message to a batch: the real runtime process between a stand-in engine and the rollout function.

The process is killed with SIGKILL in the middle; it comes back, and what was said before counts.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

from groundwork.network import find_available_port, is_port_available
from lab.testkit.policy_and_judge import REPLY, PolicyAndJudge
from openclaw.credit.baseline import mean_of
from openclaw.training.rollout import LedgerDataSource, LiveRollout
from slime.args import Arguments
from slime.contract.engine import logprob_of
from tests.helpers.rollout_args import rollout_args

LIVE = LiveRollout("openclaw_combine_method.Combine")
DEADLINE = 120.0


@pytest.fixture
async def engine(tiny_random_model: Path) -> AsyncIterator[PolicyAndJudge]:
    tokenizer = AutoTokenizer.from_pretrained(tiny_random_model)
    reply = [*tokenizer.encode(REPLY, add_special_tokens=False), tokenizer.eos_token_id]
    engine = PolicyAndJudge(tokenizer, reply)
    async with engine.serving():
        yield engine


@pytest.fixture
def port() -> int:
    return find_available_port()


@pytest.fixture
def args(
    engine: PolicyAndJudge, port: int, tiny_random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Arguments:
    monkeypatch.setenv("PORT", str(port))
    monkeypatch.setenv("OPENCLAW_JUDGE_PROMPTS", "brief")
    monkeypatch.setenv("OPENCLAW_MIN_RESPONSE_TOKENS", "2")
    host, _, engine_port = engine.url.removeprefix("http://").partition(":")
    return rollout_args(
        tmp_path,
        sglang_router_ip=host,
        sglang_router_port=engine_port,
        prm_router_ip=host,
        prm_router_port=engine_port,
        hf_checkpoint=str(tiny_random_model),
        prm_model_path=str(tiny_random_model),
        rollout_function_path=f"{__name__}.LIVE",
        rollout_max_response_len=64,
        rollout_max_context_len=2048,
        prm_m=1,
        prm_max_new_tokens=32,
    )


async def ask(client: httpx.AsyncClient, session: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    answer = await client.post(
        "/v1/chat/completions", json={"model": "m", "messages": messages}, headers={"X-Session-Id": session}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]


async def converse(client: httpx.AsyncClient, session: str) -> None:
    """A problem, a reply, a complaint."""
    problem = {"role": "user", "content": f"{session}: what is 2 + 3?"}
    reply = await ask(client, session, [problem])
    assert reply["content"] == REPLY
    assert await ask(client, session, [problem, reply, {"role": "user", "content": "No bold please."}])


async def test_conversations_become_batches_across_a_kill(
    engine: PolicyAndJudge, args: Arguments, port: int, tmp_path: Path
) -> None:
    source = LedgerDataSource(args)
    source.load(None)
    try:
        await asyncio.to_thread(source.before_rollouts)
        supervisor = source.runtime
        batch = asyncio.create_task(asyncio.to_thread(LIVE, args, 0, source))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE) as client:
            await converse(client, "first")
            problem = {"role": "user", "content": "second: what is 2 + 3?"}
            reply = await ask(client, "second", [problem])
            child = supervisor._child
            assert child is not None
            os.kill(child.pid, signal.SIGKILL)  # type: ignore[attr-defined]
            async with asyncio.timeout(DEADLINE):
                while supervisor.restarts == 0 or not supervisor._serving.is_set():
                    await asyncio.sleep(0.02)
            await ask(client, "second", [problem, reply, {"role": "user", "content": "No bold please."}])
            output = await asyncio.wait_for(batch, DEADLINE)
    finally:
        await asyncio.to_thread(source.dispose)
    assert output.metrics["openclaw/runtime_restarts"] == 1.0
    assert sorted(sample.session_id for [sample] in output.samples) == ["first", "second"]
    assert sorted(sample.reward for [sample] in output.samples) == [-1.0, -1.0 - mean_of([-1.0])]
    for [sample] in output.samples:
        ids = sample.tokens[-sample.response_length :]
        assert ids == engine.script([])
        assert sample.rollout_log_probs == [logprob_of(position, token) for position, token in enumerate(ids)]
        drops = [t - old for t, old in zip(sample.teacher_log_probs, sample.rollout_log_probs, strict=True)]
        assert all(drop == pytest.approx(drops[0]) and drop < 0 for drop in drops)
    source.weights_live(0, "2")
    assert len(source.ledger.samples.feedback_to_live_seconds()) == 2
    assert is_port_available(port)
