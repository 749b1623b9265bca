"""The engine goes away, comes back, is paused, answers oddly: requests are held, tokens stay exact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import orjson
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agentrl.sandbox import gateway_health
from groundwork.people import mark_of
from lab.testkit.engine import mock_engine, serve
from lab.testkit.waiting import eventually
from openclaw.engine.client import EngineClient, TokenChunk
from openclaw.exceptions import EngineAwayError, EngineProtocolError, EngineRejectedError
from openclaw.gateway.auth import EVERYBODY
from openclaw.gateway.dialects import CHAT
from openclaw.gateway.dialects.chat import ChatForm
from openclaw.gateway.stream import EventStream
from openclaw.owners import LOCAL
from slime.contract.engine import StandInEngine, logprob_of
from tests.unit.gateway.conftest import CONTEXT_LENGTH, PATIENCE, Stack, Starter

USER: Any = [{"role": "user", "content": "Hello?"}]
REPLY = [5, 6, 7, 8, 9]
SAMPLING = {"temperature": 0.6, "max_new_tokens": 50}


async def collect(engine: StandInEngine, **options: Any) -> list[TokenChunk]:
    client = EngineClient(engine.url, wait_seconds=options.pop("wait_seconds", PATIENCE), **options)
    try:
        return [chunk async for chunk in client.generate("rid", [1, 2, 3], SAMPLING, owner=LOCAL)]
    finally:
        await client.close()


def joined(chunks: list[TokenChunk]) -> tuple[list[int], list[float]]:
    return [token for chunk in chunks for token in chunk.ids], [value for chunk in chunks for value in chunk.logprobs]


@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("chunk_tokens", [1, 2, 5])
async def test_both_streaming_forms_give_the_same_tokens(cumulative: bool, chunk_tokens: int) -> None:
    async with mock_engine(lambda prompt: REPLY) as engine:
        engine.cumulative, engine.chunk_tokens = cumulative, chunk_tokens
        chunks = await collect(engine)
    assert joined(chunks) == (REPLY, [logprob_of(n, token) for n, token in enumerate(REPLY)])
    assert [chunk.finish for chunk in chunks if chunk.finish] == ["stop"]
    assert [(span.version, span.start, span.end) for span in chunks[-1].versions] == [("1", 0, 5)]


async def test_an_engine_that_is_away_holds_the_request() -> None:
    retries: list[str] = []
    async with mock_engine(lambda prompt: REPLY) as engine:
        engine.fail_with = [503, 502]
        chunks = await collect(engine, on_retry=retries.append)
        names = [request["rid"] for request in engine.requests]
    assert joined(chunks)[0] == REPLY
    assert retries == ["away", "away"]
    # An engine aborts by the beginning of a name, so none may begin like another.
    assert not any(one.startswith(other) for one in names for other in names if one is not other)


async def test_a_reply_that_broke_off_goes_on_from_its_tokens() -> None:
    def script(prompt: list[int]) -> list[int]:
        return REPLY[len(prompt) - 3 :]

    async with mock_engine(script) as engine:
        engine.break_after = 2
        chunks = await collect(engine)
        second = engine.requests[1]
    assert joined(chunks)[0] == REPLY
    assert second["input_ids"] == [1, 2, 3, 5, 6]
    assert second["sampling_params"]["max_new_tokens"] == 48
    assert [(span.start, span.end) for span in chunks[-1].versions] == [(2, 5)]


async def test_the_wait_is_bounded() -> None:
    async with mock_engine(lambda prompt: REPLY) as engine:
        engine.fail_with = [503] * 50
        with pytest.raises(EngineAwayError, match="no answer for"):
            await collect(engine, wait_seconds=0.1)


async def test_waits_for_an_engine_are_counted_once_and_no_longer_than_they_last() -> None:
    now = [100.0]
    async with mock_engine(lambda prompt: REPLY) as engine:
        engine.fail_with = [503] * 4

        def away(kind: str) -> None:
            now[0] += 10.0

        client = EngineClient(engine.url, wait_seconds=1000, on_retry=away, clock=lambda: now[0])

        async def reply(rid: str) -> list[TokenChunk]:
            return [chunk async for chunk in client.generate(rid, [1, 2, 3], SAMPLING, owner=LOCAL)]

        assert client.away.seconds == 0.0
        replies = await asyncio.gather(reply("one"), reply("another"))
        assert [joined(each)[0] for each in replies] == [REPLY, REPLY]
        assert client.away.seconds == 40.0
        now[0] += 50.0
        assert client.away.seconds == 40.0
        engine.fail_with = [503] * 1000
        waiting = asyncio.create_task(reply("third"))
        async with asyncio.timeout(PATIENCE):
            while client.away.seconds == 40.0:
                await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        counted = client.away.seconds
        now[0] += 50.0
        assert client.away.seconds == counted
        await client.close()


async def test_an_engine_that_answers_again_is_not_away_however_long_its_reply_takes() -> None:
    now = [100.0]
    async with mock_engine(lambda prompt: REPLY) as engine:
        engine.fail_with, engine.chunk_tokens = [503], 1

        def away(kind: str) -> None:
            now[0] += 10.0

        client = EngineClient(engine.url, wait_seconds=1000, on_retry=away, clock=lambda: now[0])
        async for _ in client.generate("rid", [1, 2, 3], SAMPLING, owner=LOCAL):
            now[0] += 50.0
        assert client.away.seconds == 10.0
        await client.close()


async def test_a_refusal_is_not_repeated() -> None:
    async with mock_engine(lambda prompt: REPLY) as engine:
        engine.fail_with = [400]
        with pytest.raises(EngineRejectedError):
            await collect(engine)
        assert len(engine.requests) == 1


@pytest.mark.parametrize(
    "meta",
    [
        {"completion_tokens": 1, "output_token_logprobs": [[-1.0, 99, None]]},
        {"completion_tokens": 1, "output_token_logprobs": []},
        {"completion_tokens": 4, "output_token_logprobs": [[-1.0, 5, None]]},
        {},
    ],
)
async def test_tokens_without_their_own_logprob_are_an_error(meta: dict[str, Any]) -> None:
    async with engine_that_sends(_event(meta)) as url:
        client = EngineClient(url, wait_seconds=0)
        with pytest.raises(EngineProtocolError):
            await anext(client.generate("rid", [1], SAMPLING, owner=LOCAL))
        await client.close()


@asynccontextmanager
async def engine_that_sends(*pieces: bytes) -> AsyncIterator[str]:
    """Serve an engine whose answer to everything is ``pieces``, each in a packet of its own; yield its URL."""

    async def answer(request: Request) -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece
                await asyncio.sleep(0.001)

        return StreamingResponse(body(), media_type="text/event-stream")

    routes = [Route(path, answer, methods=["POST"]) for path in ("/generate", "/abort_request")]
    async with serve(Starlette(routes=routes)) as url:
        yield url


def _event(meta: dict[str, Any]) -> bytes:
    return b"data: " + _json({"output_ids": [5], "meta_info": meta}) + b"\n\n"


def _token(count: int, version: str, **more: Any) -> bytes:
    entries = [[-1.0, 5, None]]
    return _event({"completion_tokens": count, "output_token_logprobs": entries, "weight_version": version, **more})


async def test_events_that_arrive_together_are_one_chunk_per_weight_version() -> None:
    last = _token(4, "2", finish_reason={"type": "stop"}) + b"data: [DONE]\n\n"
    data = _token(1, "1") + _token(2, "1") + _token(3, "2") + last
    async with engine_that_sends(data) as url:
        client = EngineClient(url, wait_seconds=0)
        chunks = [chunk async for chunk in client.generate("rid", [1], SAMPLING, owner=LOCAL)]
        await client.close()
    assert [(chunk.ids, chunk.weight_version, chunk.finish) for chunk in chunks] == [
        ([5, 5], "1", None),
        ([5, 5], "2", "stop"),
    ]


@asynccontextmanager
async def engine_of_people(
    *metas: dict[str, Any], wait_seconds: float = 0
) -> AsyncIterator[tuple[EngineClient, list[dict[str, Any]]]]:
    """A client whose engine has an adapter per person, and what it was asked.

    Each answer gives a token with each of ``metas``, up to the next that ends a reply or, empty, breaks it off.
    """
    asked: list[dict[str, Any]] = []
    left = list(metas)

    async def answer(request: Request) -> Response:
        if request.url.path != "/generate":
            return Response("{}")
        asked.append(await request.json())
        body, number = b"", 0
        while left and (meta := left.pop(0)):
            number += 1
            body += _token(number, "3", **meta)
            if "finish_reason" in meta:
                body += b"data: [DONE]\n\n"
                break
        return Response(body, media_type="text/event-stream")

    routes = [Route(path, answer, methods=["POST"]) for path in ("/generate", "/abort_request")]
    async with serve(Starlette(routes=routes)) as url:
        client = EngineClient(url, wait_seconds=wait_seconds, per_person=True)
        yield client, asked
        await client.close()


async def test_an_engine_with_an_adapter_per_person_is_asked_for_the_owners() -> None:
    own, newest = (f"weights-{number}-0123abcd-5-{mark_of('alice')}" for number in (3, 4))
    fallback = {"adapter": own, "adapter_fallback": {"adapter": newest, "reason": "it is gone"}}
    last = fallback | {"finish_reason": {"type": "stop"}}
    async with engine_of_people(fallback, last) as (client, asked):
        chunks = [chunk async for chunk in client.generate("rid", [1], SAMPLING, owner="alice/phone")]
    assert asked[0]["lora_path"] == f"person-{mark_of('alice')}"
    assert {chunk.fallback for chunk in chunks} == {newest}
    async with engine_of_people({"adapter": "base", "weight_version": "0", "finish_reason": {"type": "stop"}}) as (
        client,
        _,
    ):
        [chunk] = [chunk async for chunk in client.generate("rid", [1], SAMPLING, owner=LOCAL)]
    assert (chunk.weight_version, chunk.fallback) == ("0", None)


async def test_a_reply_that_broke_off_goes_on_with_the_adapter_that_began_it() -> None:
    own = {"adapter": f"weights-3-0123abcd-5-{mark_of('alice')}"}
    metas = (own, {}, own | {"finish_reason": {"type": "stop"}})
    async with engine_of_people(*metas, wait_seconds=PATIENCE) as (client, asked):
        chunks = [chunk async for chunk in client.generate("rid", [1], SAMPLING, owner="alice")]
    assert joined(chunks)[0] == [5, 5]
    assert [body["lora_path"] for body in asked] == [f"person-{mark_of('alice')}", own["adapter"]]


@pytest.mark.parametrize(
    "meta", [{"adapter": f"weights-3-0123abcd-5-{mark_of('bob')}"}, {"adapter": "base"}, {"adapter": None}, {}]
)
async def test_an_answer_by_somebody_elses_adapter_is_an_error(meta: dict[str, Any]) -> None:
    async with engine_of_people(meta | {"finish_reason": {"type": "stop"}}) as (client, _):
        with pytest.raises(EngineProtocolError, match="must run with --adapter-per-person"):
            assert [chunk async for chunk in client.generate("rid", [1], SAMPLING, owner="alice")] == []


async def test_without_adapters_per_person_no_request_names_one() -> None:
    async with mock_engine(lambda prompt: REPLY) as engine:
        await collect(engine)
    assert "lora_path" not in engine.requests[0]


@pytest.mark.parametrize("size", [13, 64, 300])
async def test_events_cut_anywhere_are_read(size: int) -> None:
    data = _token(1, "1") + _token(2, "1") + _token(3, "1", finish_reason={"type": "stop"}) + b"data: [DONE]\n\n"
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    async with engine_that_sends(*pieces) as url:
        client = EngineClient(url, wait_seconds=0)
        chunks = [chunk async for chunk in client.generate("rid", [1], SAMPLING, owner=LOCAL)]
        await client.close()
    assert joined(chunks)[0] == [5, 5, 5]


async def test_tokens_before_a_broken_event_are_delivered() -> None:
    async with engine_that_sends(_token(1, "1") + b"data: {broken\n\n") as url:
        client = EngineClient(url, wait_seconds=0)
        chunks = client.generate("rid", [1], SAMPLING, owner=LOCAL)
        assert (await anext(chunks)).ids == [5]
        with pytest.raises(EngineProtocolError, match="is not JSON"):
            await anext(chunks)
        await client.close()


def _json(value: Any) -> bytes:
    return orjson.dumps(value)


async def test_requests_wait_while_the_engine_is_paused(stack: Stack) -> None:
    stack.say("one two three", "hi")
    stack.engine.token_gate = asyncio.Semaphore(2)
    create = stack.client.chat.completions.create
    running = asyncio.create_task(create(model="any", messages=USER))
    gate = stack.engine.token_gate
    await stack.engine.wait_for(lambda: bool(stack.engine.running))
    async with asyncio.timeout(10):
        while not gate.locked():
            await asyncio.sleep(0)
    stack.engine.pause()
    waiting = asyncio.create_task(create(model="any", messages=USER))
    await stack.engine.wait_for(lambda: len(stack.engine.requests) == 2)
    for _ in range(100):
        gate.release()
    assert not running.done()
    assert not waiting.done()
    stack.engine.resume("2")
    replies = await asyncio.gather(running, waiting)
    assert [reply.choices[0].message.content for reply in replies] == ["one two three", "hi"]
    by_id = {turn.id: turn for turn in stack.turns()}
    first, second = by_id[replies[0].id], by_id[replies[1].id]
    assert [span.version for span in first.weight_versions] == ["1", "2"]
    assert first.weight_versions[0].end == first.weight_versions[1].start == 2
    assert [span.version for span in second.weight_versions] == ["2"]
    assert stack.metric("openclaw_refused_total") == 0
    assert stack.metric("openclaw_mixed_version_replies_total") == 1


async def test_a_crash_in_the_middle_of_a_reply_is_not_seen(stack: Stack) -> None:
    stack.say("one two three four")
    stack.engine.break_after = 2
    chunks = [
        chunk async for chunk in await stack.client.chat.completions.create(model="any", messages=USER, stream=True)
    ]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two three four"
    (turn,) = stack.turns()
    assert (turn.state, turn.finish_reason) == ("waiting", "stop")
    assert len(turn.response_ids) == len(turn.response_logprobs) == turn.weight_versions[-1].end
    assert stack.metric("openclaw_engine_retries_total", kind="resumed") == 1


async def test_an_engine_that_stays_away_is_a_503(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_health, "MIN_AWAY_SECONDS", 0.01)
    stack = await start(engine_url="http://127.0.0.1:9", engine_wait_seconds=0.1)
    outage = gateway_health.Outage(stack.url, gateway_health.GatewayHealth())
    await outage.begin()
    assert await outage.problem() is None
    with pytest.raises(openai.InternalServerError) as caught:
        await stack.client.chat.completions.create(model="any", messages=USER, stream=True)
    assert caught.value.status_code == 503
    assert caught.value.code == "engine_unavailable"
    assert stack.turns() == []
    assert "requests waited for its engine" in (await outage.problem() or "")
    assert stack.metric("openclaw_refused_total") == 1
    assert stack.metric("openclaw_requests_in_flight") == 0


async def test_a_stream_whose_engine_is_lost_counts_as_refused(start: Starter) -> None:
    stack = await start(engine_wait_seconds=0.1)
    stack.say("one two three")
    stack.engine.break_after = 2
    stack.engine.token_gate = asyncio.Semaphore(2)
    body = {"model": "any", "messages": USER, "stream": True}
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            stack.engine.fail_with = [503] * 50
            for _ in range(100):
                stack.engine.token_gate.release()
            text = (await response.aread()).decode()
    assert "engine_unavailable" in text
    async with asyncio.timeout(10):
        while stack.metric("openclaw_requests_total", code="503") != 1:
            await asyncio.sleep(0)
    assert stack.metric("openclaw_refused_total") == 1
    assert stack.metric("openclaw_requests_total", code="200") == 0


async def test_a_stream_that_cannot_begin_is_given_up() -> None:
    ended: list[int] = []

    async def source() -> AsyncGenerator[bytes, None]:
        yield b"never"

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        raise OSError("broken pipe")

    with pytest.raises(OSError, match="broken pipe"):
        await EventStream(source(), ChatForm(), {}, ended.append, keepalive_seconds=1.0)(
            {"type": "http"}, receive, send
        )
    assert ended == [499]


async def test_a_reply_given_up_unread_is_recorded_once(stack: Stack) -> None:
    stack.say("one two three")
    question = CHAT.read(_json({"model": "any", "messages": USER, "stream": True}), CONTEXT_LENGTH)
    async with stack.service.reply(question, {}, EVERYBODY) as reply:
        assert await reply.begun()
    await eventually(lambda: stack.metric("openclaw_turns_total", kind="main", outcome="abort"), 1)
    assert [turn.finish_reason for turn in stack.turns()] == ["abort"]
    assert stack.metric("openclaw_requests_in_flight") == 0
