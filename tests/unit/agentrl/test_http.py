"""The wire: cut connections, hostile requests, keys, and a server that stays awake."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import Request

from agentrl import client as http_client
from agentrl.client import HttpLeases
from agentrl.exceptions import DeadlineError, InfraError, InvalidError
from agentrl.protocol import StepRequest
from agentrl.web.app import read
from lab.testkit.agent_pools import ADDRESS, Build, World, acting, asked, judging, renewing, resetting, until

KEY = "a key of this test"
ID = "b" * 32


@pytest.fixture
async def world(build: Build, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(http_client, "FIRST_PAUSE_S", 0.001)
    return await build("http")


def browser(world: World, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=world.transport.inner, base_url=ADDRESS, headers=headers)


def body(**fields: Any) -> bytes:
    return json.dumps({"request_id": ID, **fields}).encode()


@pytest.mark.parametrize("cuts", [["before"], ["after"], ["after", "refused", "before", "after"]])
async def test_a_cut_connection_never_executes_twice(world: World, cuts: list[str]) -> None:
    async def cut(call: Any) -> Any:
        world.transport.cuts = list(cuts)
        found = await call
        assert world.transport.cuts == []
        return found

    lease = (await cut(world.client.lease(asked()))).lease_id
    assert (await world.client.status()).used == 1
    await cut(world.client.reset(lease, resetting()))
    answer = await cut(world.client.step(lease, acting(2, "click")))
    assert answer.observation.text == "1: click"
    await cut(world.client.renew(lease, renewing(50)))
    assert (await cut(world.client.evaluate(lease, judging()))).score == 1.0
    await cut(world.client.release(lease))
    await until(lambda: world.pool._capacity.used_slots == 0)
    assert world.script.calls == ["reset", "click", "evaluate", "close"]


async def test_a_connection_cut_while_the_operation_runs(world: World) -> None:
    lease = await world.leased()
    request = acting(2, "wait")
    first = asyncio.create_task(world.client.step(lease, request))
    await until(lambda: world.script.count("wait"))
    first.cancel()
    again = asyncio.create_task(world.client.step(lease, request))
    await until(lambda: world.metric("agentrl_replays_total", operation="step"))
    world.script.gate.set()
    assert (await again).observation.text == "1: wait"
    assert world.script.count("wait") == 1


async def test_a_lease_request_that_is_repeated_joins_the_first(world: World) -> None:
    held = [await world.leased() for _ in range(2)]
    request = asked()
    first = asyncio.create_task(world.client.lease(request))
    await until(lambda: world.pool._capacity.waiting == 1)
    again = asyncio.create_task(world.client.lease(request))
    await until(lambda: world.metric("agentrl_replays_total", operation="lease"))
    await world.client.release(held[0])
    assert await again == await first
    assert (await world.client.status()).waiting == 0
    assert world.metric("agentrl_leases_granted_total") == 3


async def test_a_server_that_is_gone(world: World) -> None:
    world.transport.cuts = ["refused"] * 1000
    client = HttpLeases(ADDRESS, transport=world.transport, unreachable_s=0.05)
    with pytest.raises(InfraError, match="does not answer") as error:
        await client.lease(asked())
    assert error.value.retryable


async def test_a_call_ends_at_the_client_s_deadline(world: World) -> None:
    lease = await world.leased()
    client = HttpLeases(ADDRESS, transport=world.transport, margin_s=0.01)
    with pytest.raises(DeadlineError, match="no answer within"):
        await client.step(lease, acting(2, "ignore cancellation", timeout_s=0.001))


async def test_a_route_that_answers_before_the_operation_is_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await world.leased()
    step = asyncio.create_task(world.client.step(lease, acting(2, "wait")))
    await until(lambda: world.script.count("wait"))
    monkeypatch.setattr("agentrl.leases.lease.WORKER_MARGIN_S", 0.01 - 20.0)
    again = acting(3, "next", timeout_s=20.0)
    waiting = asyncio.create_task(world.client.step(lease, again))
    await until(lambda: world.metric("agentrl_replays_total", operation="step") >= 2)
    world.script.gate.set()
    await step
    assert (await waiting).observation.text == "2: next"


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[1]", b'{"ok":true}'])
async def test_a_server_that_is_no_pool(answer: bytes) -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=answer))
    with pytest.raises(InfraError, match="in another protocol"):
        await HttpLeases(ADDRESS, transport=transport).lease(asked())
    transport = httpx.MockTransport(lambda request: httpx.Response(502, content=b"<html>bad gateway"))
    with pytest.raises(InfraError, match="502 in another protocol"):
        await HttpLeases(ADDRESS, transport=transport).status()


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xff\xfe\x00",
        b"null",
        b"[]",
        b"{",
        b'{"request_id": 5}',
        body(seq="1", action={}),
        body(seq=0, action={}),
        body(seq=10**30, action={}, extra=1),
        body(seq=1, action=[]),
        body(seq=1, action={}, timeout_s=float("nan")),
        b"[" * 9000,
        b'{"request_id":"' + ID.encode() + b'","seq":1,"action":' + b'{"a":' * 1500 + b"1" + b"}" * 1501,
    ],
)
async def test_a_body_that_is_garbage(world: World, garbage: bytes) -> None:
    lease = await world.leased()
    async with browser(world, **{"content-type": "application/json"}) as client:
        answer = await client.post(f"/v1/lease/{lease}/step", content=garbage)
        assert answer.status_code == 400
        assert answer.json()["ok"] is False
        error = answer.json()["error"]
        assert (error["kind"], error["code"], error["retryable"]) == ("invalid", "invalid_request", False)
        assert (await client.get("/healthz")).text == "ok\n"
    await world.client.step(lease, acting(2, "click"))


async def test_a_body_that_is_too_large(world: World) -> None:
    lease = await world.leased()

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 1000

    async with browser(world, **{"content-type": "application/json"}) as client:
        for content in (b" " * 10_001, parts()):
            answer = await client.post(f"/v1/lease/{lease}/step", content=content)
            assert answer.status_code == 413
            assert answer.json()["error"]["code"] == "body_too_large"
    with pytest.raises(InvalidError, match="larger than 10000 bytes"):
        await world.client.step(lease, acting(2, "x" * 10_000))


async def test_other_refusals(world: World) -> None:
    async with browser(world) as client:
        for method, path, status, code in (
            ("POST", "/v1/lease", 415, "not_json"),
            ("GET", "/v1/lease", 405, "wrong_method"),
            ("GET", "/v1/nothing", 404, "unknown_route"),
            ("DELETE", "/v1/lease/x/y", 404, "unknown_route"),
        ):
            answer = await client.request(method, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        answer = await client.get("/v1/status", headers={"host": "evil.example:80"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "wrong_host")


async def test_a_full_pool_says_when_to_ask_again(world: World) -> None:
    for _ in range(2):
        await world.leased()
    async with browser(world) as client:
        answer = await client.post("/v1/lease", json={"request_id": ID, "task_id": "plain", "wait_s": 0})
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1


async def test_without_the_key_nothing_answers(build: Build) -> None:
    world = await build("http", key=KEY)
    await world.leased()
    for key in ("", KEY[:-1], KEY + "x", "\N{LATIN SMALL LETTER E WITH ACUTE}"):
        async with browser(world) as client:
            headers = {b"authorization": b"Bearer " + key.encode()}
            for path in ("/v1/status", "/metrics", "/v1/nothing"):
                answer = await client.get(path, headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
            assert (await client.post("/v1/lease", content=b"garbage", headers=headers)).status_code == 401
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/readyz")).status_code == 200


async def test_a_defect_of_the_server_is_an_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails() -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(world.pool, "status", fails)
    async with browser(world) as client:
        answer = await client.get("/v1/status")
    assert answer.status_code == 500
    assert answer.json()["error"]["kind"] == "internal"
    assert "secret" not in answer.text


async def test_fifty_leases_at_work_do_not_block_the_others(build: Build) -> None:
    world = await build("http", slots=50)
    leases = await asyncio.gather(*(world.leased() for _ in range(50)))
    steps = [asyncio.create_task(world.client.step(lease, acting(2, "wait"))) for lease in leases]
    waiting = asyncio.create_task(world.client.lease(asked()))
    await until(lambda: world.script.count("wait") == 50 and world.pool._capacity.waiting)
    async with browser(world) as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        status = (await client.get("/v1/status")).json()
        assert (status["ok"], status["used"], status["waiting"]) == (True, 50, 1)
        assert "agentrl_leases_granted_total 50.0" in (await client.get("/metrics")).text
    assert not any(step.done() for step in steps)
    world.script.gate.set()
    await asyncio.gather(*steps)
    await asyncio.gather(*(world.client.release(lease) for lease in leases))
    await waiting
    assert world.script.most_alive <= 50


async def test_calls_under_way_have_connections_of_their_own_and_later_calls_reuse_them() -> None:
    arrived, gate = [], asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        arrived.append(request)
        await gate.wait()
        return httpx.Response(200, json={"ok": True})

    client = HttpLeases(ADDRESS, transport=httpx.MockTransport(answer))
    for _ in range(2):
        calls = [asyncio.create_task(client.status()) for _ in range(5)]
        await until(lambda: len(arrived) == 5)
        assert client._idle == []
        gate.set()
        await asyncio.gather(*calls)
        assert len(client._idle) == 5
        arrived.clear()
        gate.clear()
    kept = list(client._idle)
    await client.close()
    assert all(each.is_closed for each in kept)
    with pytest.raises(RuntimeError, match="is closed"):
        await client.status()


@pytest.mark.parametrize("values", [b"[]," * 60_000, b"0," * 110_000, b"{}," * 60_000])
async def test_a_body_of_too_many_values_is_not_read(values: bytes) -> None:
    """Whatever its bytes: reading it would hold up all leases."""
    body = b'{"request_id":"aaaaaaaa","seq":1,"action":{"x":[' + values + b"0]}}"

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body}

    asked = Request({"type": "http", "method": "POST", "headers": []}, receive)
    with pytest.raises(InvalidError, match="more than 100000 commas and brackets") as refused:
        await read(asked, StepRequest, 1 << 24)
    assert refused.value.code == "body_too_large"
