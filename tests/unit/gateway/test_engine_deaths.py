"""A request under which engines die: sent once more, then refused; bystanders are served."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import openai
import pytest

import openclaw.engine.client as engine_client
from lab.testkit.engine import mock_engine
from openclaw.engine.client import GRAMMAR_PARAMETER, EngineClient
from openclaw.exceptions import EngineAwayError, EngineDiedError, EngineRejectedError
from openclaw.owners import LOCAL
from slime.contract.engine import StandInEngine
from tests.unit.gateway.conftest import PATIENCE, Stack

USER: Any = [{"role": "user", "content": "Hello?"}]
REPLY = [5, 6, 7, 8, 9]
SAMPLING = {"temperature": 0.6, "max_new_tokens": 50}
POISON = {**SAMPLING, "top_k": 7}


def is_poison(payload: dict[str, Any]) -> bool:
    return payload["sampling_params"].get("top_k") == 7


async def ask(client: EngineClient, name: str, sampling: dict[str, Any] = SAMPLING) -> list[int]:
    return [token async for chunk in client.generate(name, [1, 2, 3], sampling, owner=LOCAL) for token in chunk.ids]


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "GATHER_SECONDS", 0.01)
    monkeypatch.setattr(engine_client, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(engine_client, "MAX_PAUSE_SECONDS", 0.01)


async def test_a_request_is_sent_to_two_engines_at_most(caplog: pytest.LogCaptureFixture) -> None:
    outcomes: list[str] = []
    async with mock_engine(lambda prompt: REPLY) as engine:
        engine.dies_of = is_poison
        client = EngineClient(engine.url, wait_seconds=PATIENCE, on_death=outcomes.append)
        with caplog.at_level(logging.WARNING), pytest.raises(EngineDiedError, match="2 times"):
            await ask(client, "poison", POISON)
        async with asyncio.timeout(PATIENCE):
            while "ended while it worked on" not in caplog.text:
                await asyncio.sleep(0.001)
        await client.close()
    assert engine.deaths == 2
    assert outcomes == ["resent", "refused"]
    assert "poison (key -, conversation None)" in caplog.text


async def test_bystanders_of_two_poisoned_requests_are_served() -> None:
    async with mock_engine(lambda prompt: REPLY) as engine:
        engine.dies_of = is_poison
        client = EngineClient(engine.url, wait_seconds=PATIENCE)
        bystanders = [asyncio.create_task(ask(client, f"good-{n}")) for n in range(6)]
        poisoned = [asyncio.create_task(ask(client, f"bad-{n}", POISON)) for n in range(2)]
        bystanders += [asyncio.create_task(ask(client, f"later-{n}")) for n in range(6)]
        ends = await asyncio.gather(*bystanders, *poisoned, return_exceptions=True)
        await client.close()
    assert ends[: len(bystanders)] == [REPLY] * len(bystanders)
    assert [type(end) for end in ends[len(bystanders) :]] == [EngineDiedError] * 2
    assert engine.deaths == 4


async def test_a_reply_that_got_tokens_outlives_two_engines_but_not_three() -> None:
    def script(prompt: list[int]) -> list[int]:
        return REPLY[len(prompt) - 3 :]

    async def run(engine: StandInEngine, breaks: int) -> list[int]:
        client = EngineClient(engine.url, wait_seconds=PATIENCE)
        tokens: list[int] = []
        engine.break_after = 1
        async for chunk in client.generate("rid", [1, 2, 3], SAMPLING, owner=LOCAL):
            tokens += chunk.ids
            if engine.break_after is None and len(tokens) < breaks:
                engine.break_after = 1
        await client.close()
        return tokens

    async with mock_engine(script) as engine:
        assert await run(engine, 2) == REPLY
        with pytest.raises(EngineDiedError, match="3 times"):
            await run(engine, 3)


async def test_an_engine_that_restarts_is_waited_for() -> None:
    async with mock_engine(lambda prompt: REPLY) as engine:
        engine.fail_with = [503] * 20
        client = EngineClient(engine.url, wait_seconds=PATIENCE)
        assert await ask(client, "rid") == REPLY
        client = EngineClient("http://127.0.0.1:9", wait_seconds=0.1)
        with pytest.raises(EngineAwayError):
            await ask(client, "rid")


REPORTED_500 = {
    "output_ids": [7],
    "meta_info": {
        "completion_tokens": 1,
        "output_token_logprobs": [],
        "finish_reason": {"type": "abort", "message": "no token fits the grammar", "status_code": 500},
    },
}


@pytest.mark.parametrize("reported", [True, False])
async def test_a_500_of_a_living_engine_is_a_refusal_soon(reported: bool) -> None:
    async with mock_engine(lambda prompt: REPLY) as engine:
        if reported:
            engine.events_first = [REPORTED_500] * 50
        else:
            engine.fail_with = [500] * 50
        client = EngineClient(engine.url, wait_seconds=PATIENCE)
        with pytest.raises(EngineRejectedError, match="6 times"):
            await ask(client, "rid")
        await client.close()
    assert len(engine.requests) == engine_client.MAX_FAILURES


async def test_a_grammar_that_fails_within_a_reply_is_a_refusal_at_once() -> None:
    async with mock_engine(lambda prompt: REPLY) as engine:
        engine.event_after_first = {"error": {"message": "Grammar accept_token failed", "code": 500}}
        client = EngineClient(engine.url, wait_seconds=PATIENCE)
        chunks = client.generate("rid", [1, 2, 3], {**SAMPLING, GRAMMAR_PARAMETER: "{}"}, owner=LOCAL)
        assert (await anext(chunks)).ids == REPLY[:1]
        with pytest.raises(EngineRejectedError, match="accept_token"):
            await anext(chunks)
        await client.close()


async def test_a_few_500s_are_not_seen() -> None:
    async with mock_engine(lambda prompt: REPLY) as engine:
        engine.fail_with = [500] * 4
        client = EngineClient(engine.url, wait_seconds=PATIENCE)
        assert await ask(client, "rid") == REPLY


@pytest.mark.parametrize("stream", [True, False])
async def test_the_client_gets_a_400_that_sdks_do_not_repeat(stack: Stack, stream: bool) -> None:
    stack.say("never", "one two")
    stack.engine.dies_of = is_poison
    with pytest.raises(openai.BadRequestError) as caught:
        await stack.client.with_options(max_retries=2).chat.completions.create(
            model="any", messages=USER, stream=stream, extra_body={"top_k": 7}
        )
    assert caught.value.code == "engine_died"
    assert stack.engine.deaths == 2
    assert stack.metric("openclaw_engine_deaths_total", outcome="refused") == 1
    assert stack.metric("openclaw_refused_total") == 0
    assert stack.turns() == []
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        assert (await http.post("/v1/chat/completions", json={"messages": USER})).status_code == 200
