"""A leading process and two workers, here in one: what one has is what all have, and a lost worker leaves nothing behind.

`tests/integration/test_gateway_workers.py` does the same with real processes, and kills them.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from lab.testkit.engine import mock_engine, serve
from lab.testkit.waiting import eventually
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import GuardedApp, create_app, create_worker_app
from openclaw.gateway.auth import Keyring
from openclaw.gateway.channel import Channel, ChannelLostError
from openclaw.gateway.chat import ChatService
from openclaw.gateway.errors import ApiError
from openclaw.gateway.response_desk import ResponseDesk
from openclaw.gateway.shared import Lead, PassedOn, Shared, announce, heard
from openclaw.gateway.under_way import InFlightRegistry
from openclaw.ledger.exceptions import LedgerUnavailableError
from openclaw.ledger.records import Turn
from openclaw.ledger.store import Ledger
from slime.contract.engine import StandInEngine
from tests.unit.gateway.test_window import Echo

CHAT = "/v1/chat/completions"
REQUESTS = 6
PEOPLE = ("ann", "ben")
REPLY = "Tomatoes want sun."


@dataclass
class Worker:
    """A worker, and both ends of its channel."""

    service: ChatService
    lead: Lead
    channel: Channel
    http: httpx.AsyncClient


@dataclass
class Pair:
    """The leading process and its workers."""

    engine: StandInEngine
    ledger: Ledger
    service: ChatService
    app: GuardedApp
    workers: list[Worker]

    def turns(self) -> list[Turn]:
        return [record.turn for record in self.ledger.views.turn_records()]


def as_person(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer sk-{name}-0123456789"}


ANN = as_person("ann")


def has_part(ids: list[int], part: list[int]) -> bool:
    return any(ids[start : start + len(part)] == part for start in range(len(ids)))


async def test_a_quota_that_one_worker_used_up_holds_for_the_other(pair: Pair, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(keys.read_text().replace("ann:", "ann (sampled=1):"))
    pair.app.reloader.now()
    first, other = pair.workers
    told = (await chat(first, "hi")).json()["usage"]
    spent = pair.ledger.usage.total(None, "ann")
    assert (spent.prefill + spent.cached, spent.sampled) == (told["prompt_tokens"], told["completion_tokens"])
    for worker in (first, other):
        refused = await chat(worker, "hi")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
    assert words_of(await chat(other, "hi", headers=as_person("ben"))) == REPLY


async def chat(worker: Worker, *texts: str, headers: dict[str, str] = ANN, **more: Any) -> httpx.Response:
    """Ask for a reply to a conversation, the user's words first."""
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    return await worker.http.post(CHAT, json={"model": "policy", "messages": messages, **more}, headers=headers)


def words_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


@pytest.fixture
async def pair(tmp_path: Path, tokenizer: Any) -> AsyncIterator[Pair]:
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{name}:sk-{name}-0123456789\n" for name in PEOPLE) + "root (admin):sk-root-0123456789\n")
    keys.chmod(0o600)
    letters = [tokenizer.encode(letter, add_special_tokens=False) for letter in REPLY]  # no rendering gives such ids
    reply = [*chain.from_iterable(letters), tokenizer.eos_token_id]
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(mock_engine(lambda prompt: reply))
        config = RuntimeConfig(
            policy_url=engine.url,
            tokenizer="tiny-policy",
            ledger=str(tmp_path / "ledger.sqlite"),
            context_length=2048,
            prm_max_new_tokens=512,
            api_keys_file=str(keys),
            rate_limit_requests=REQUESTS,
            commands=True,
            gateway_workers=2,
        )
        config.validate()
        ledger = Ledger(config.ledger or "")
        stack.callback(ledger.close)
        registry, keyring = CollectorRegistry(), Keyring(None, str(keys))
        service = ChatService(config, tokenizer, ledger, registry)
        app = create_app(service, registry, keyring, views=Echo())
        await stack.enter_async_context(serve(app))
        workers: list[Worker] = []
        pair = Pair(engine, ledger, service, app, workers)

        def tell(name: str, *args: Any) -> None:
            for worker in workers:
                assert worker.lead.channel is not None
                worker.lead.channel.tell(name, *args)

        announce(service, tell)
        for _ in range(2):
            workers.append(await started(stack, pair, tokenizer, config, keyring))
        yield pair


async def started(stack: AsyncExitStack, pair: Pair, tokenizer: Any, config: RuntimeConfig, keyring: Keyring) -> Worker:
    ours, theirs = socket.socketpair()
    lead = Lead(pair.service, pair.app, keyring)
    lead.channel = Channel(lead.functions(), lambda: None)
    passed = PassedOn()
    functions = passed.functions()
    channel = passed.channel = Channel(functions, lambda: None)
    shared = Shared.of(channel, passed)
    own = Ledger(config.ledger or "")
    stack.callback(own.close)
    own.database.only_read()
    service = ChatService(config, tokenizer, own, CollectorRegistry(), shared=shared)
    functions |= heard(service)
    await lead.channel.open(ours)
    await channel.open(theirs)
    stack.callback(channel.close)
    app = create_worker_app(
        service, shared, ResponseDesk(service, own), Keyring(None, config.api_keys_file), InFlightRegistry()
    )
    url = await stack.enter_async_context(serve(app))
    http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, trust_env=False, timeout=60.0))
    return Worker(service, lead, channel, http)


async def test_a_conversation_over_both_workers_is_one_session_of_exact_tokens(pair: Pair) -> None:
    one, other = pair.workers
    first = words_of(await chat(one, "hello"))
    second = words_of(await chat(other, "hello", first, "go on"))
    await chat(one, "hello", first, "go on", second, "thanks")
    turns = pair.turns()
    assert len({turn.session_id for turn in turns}) == 1
    assert [turn.index for turn in turns] == [0, 1, 2]
    assert [turn.next_state and turn.next_state[0]["content"] for turn in turns] == ["go on", "thanks", None]
    for earlier, later in pairwise(turns):
        assert has_part(later.prompt_ids, earlier.response_ids), "the worker that did not sample the reply has its ids"


async def test_a_worker_replies_as_one_process_does(pair: Pair, tokenizer: Any, tmp_path: Path) -> None:
    config = replace(pair.service.config, ledger=str(tmp_path / "alone.sqlite"), gateway_workers=1)
    alone = Ledger(config.ledger or "")
    service = ChatService(config, tokenizer, alone, CollectorRegistry())
    async with serve(create_app(service, CollectorRegistry())) as url, httpx.AsyncClient(base_url=url) as http:
        single = [Worker(service, pair.workers[0].lead, pair.workers[0].channel, http)] * 2
        for workers in (pair.workers, single):
            words = words_of(await chat(workers[0], "hello", session_id="s"))
            words_of(await chat(workers[1], "hello", words, "go on", session_id="s"))
    several, one = pair.turns(), [record.turn for record in alone.views.turn_records()]
    alone.close()
    for mine, other in zip(several, one, strict=True):
        for field in ("prompt_ids", "response_ids", "response_logprobs", "messages", "response_message", "next_state"):
            assert getattr(mine, field) == getattr(other, field), field


async def test_a_quota_is_exact_over_both_workers(pair: Pair) -> None:
    answers = await asyncio.gather(*(chat(pair.workers[number % 2], f"{number}") for number in range(2 * REQUESTS)))
    assert Counter(answer.status_code for answer in answers) == {200: REQUESTS, 429: REQUESTS}
    assert {answer.headers.get("retry-after") is not None for answer in answers if answer.status_code == 429} == {True}
    assert len(pair.turns()) == REQUESTS
    assert (await chat(pair.workers[0], "hi", headers=as_person("ben"))).status_code == 200


async def test_one_log_in_opens_the_window_at_both_workers(pair: Pair) -> None:
    one, other = (worker.http for worker in pair.workers)
    form, own = {"key": "sk-ann-0123456789"}, {"sec-fetch-site": "same-origin", "accept": "text/html"}
    assert (await other.get("/window/learning", headers=own)).status_code == 401
    answer = await one.post("/window/log_in", data=form, headers=own)
    assert answer.status_code == 303
    cookie = {"cookie": answer.headers["set-cookie"].partition(";")[0]}
    for http in (one, other):
        assert (await http.get("/window/learning", headers=own | cookie)).text == "ann looks at ann"
        assert (await http.post(CHAT, json={"messages": []}, headers=cookie)).status_code == 401
    await other.post("/window/log_out", headers=own | cookie)
    assert (await one.get("/window/learning", headers=own | cookie)).status_code == 401


async def test_what_is_forgotten_is_forgotten_by_all(pair: Pair) -> None:
    one, other = pair.workers
    keys = [await worker.service.engine.cache_keys.ask("ann") for worker in pair.workers]
    assert keys[0] == keys[1] == pair.service.engine.cache_keys.of("ann")
    first = await chat(one, "my secret", session_id="s")
    words = words_of(first)
    await chat(other, "my secret", words, "and", session_id="s")
    gone = await other.http.delete("/v1/sessions/s", headers=ANN)
    assert gone.json()["turns"] == 2
    assert pair.turns() == []
    for worker in pair.workers:
        words_of(await chat(worker, "my secret", words, "and", session_id="t"))
        assert await worker.service.engine.cache_keys.ask("ann") == pair.service.engine.cache_keys.of("ann") != keys[0]
    assert (await one.http.get(f"/v1/turns/{first.json()['id']}", headers=ANN)).status_code == 404


async def test_commands_and_stored_responses_reach_the_process_that_has_them(pair: Pair) -> None:
    one, other = pair.workers
    first = await chat(one, "hello")
    said = words_of(await chat(other, "hello", words_of(first), "/rl bad too long"))
    assert "thumbs down" in said
    assert [turn.id for turn in pair.turns()] == [first.json()["id"]], "a command is no turn"
    stored = (await one.http.post("/v1/responses", json={"model": "policy", "input": "hello"}, headers=ANN)).json()
    more = {"model": "policy", "input": "go on", "previous_response_id": stored["id"]}
    assert (await other.http.post("/v1/responses", json=more, headers=ANN)).status_code == 200
    assert (await other.http.get(f"/v1/responses/{stored['id']}", headers=ANN)).json()["id"] == stored["id"]


async def test_the_key_of_an_episode_opens_all_workers_until_its_reward(pair: Pair) -> None:
    one, other = pair.workers
    created = await other.http.post("/v1/episodes", json={"task": "t", "ttl_s": 60.0}, headers=ANN)
    episode = created.json()
    agent = {"Authorization": f"Bearer {episode['api_key']}"}
    for worker in pair.workers:
        words_of(await chat(worker, "act", headers=agent))
    assert (await one.http.get("/metrics", headers=agent)).status_code == 403
    path = f"/v1/episodes/{episode['id']}/reward"
    reward = await one.http.post(path, json={"status": "ok", "reward": 1.0}, headers=ANN)
    assert reward.json()["counts"]["turns"] == 2, reward.text
    for worker in pair.workers:
        assert (await chat(worker, "act", headers=agent)).status_code == 401


async def test_each_worker_refuses_as_the_leading_process_does(pair: Pair) -> None:
    for worker in pair.workers:
        for method, path in (("POST", CHAT), ("GET", "/v1/models")):
            body = {"messages": [{"role": "user", "content": "hi"}]} if method == "POST" else None
            page = await worker.http.request(method, path, json=body, headers={**ANN, "Origin": "https://evil.example"})
            assert page.json()["error"]["code"] == "origin_not_allowed"
            stranger = {"Authorization": "Bearer sk-nobody"}
            assert (await worker.http.request(method, path, json=body, headers=stranger)).status_code == 401
        assert (await worker.http.get("/v1/nothing", headers=ANN)).status_code == 404
        assert (await worker.http.get(CHAT, headers=ANN)).status_code == 405
        lesson = await worker.http.post("/v1/lessons", json={"text": "Be brief."}, headers=ANN)
        assert lesson.status_code == 200, lesson.text
        assert "x-request-id" in lesson.headers
        plain = await worker.http.post("/v1/lessons", content="{}", headers={**ANN, "Content-Type": "text/plain"})
        assert plain.status_code == 415


async def test_an_answer_of_the_leading_process_crosses_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question to a full worker waits for a round of its loop."""
    worker, asked = pair.workers[0], list[str]()
    channel = worker.lead.channel
    assert channel is not None
    ask = channel.ask

    def note(name: str, *args: Any) -> asyncio.Future[Any]:
        asked.append(name)
        return ask(name, *args)

    monkeypatch.setattr(channel, "ask", note)
    assert (await worker.http.get("/healthz")).status_code == 200
    assert asked == []
    assert (await worker.http.post("/v1/lessons", json={"text": "Be brief."}, headers=ANN)).status_code == 200
    assert asked == ["receive"]


async def test_who_sends_no_key_costs_the_leading_process_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, asked = pair.workers[0], list[str]()
    ask = worker.channel.ask

    def note(name: str, *args: Any) -> asyncio.Future[Any]:
        asked.append(name)
        return ask(name, *args)

    monkeypatch.setattr(worker.channel, "ask", note)
    for headers, questions in (({}, []), ({"x-api-key": "sk-nobody"}, ["answer"])):
        asked.clear()
        answer = await chat(worker, "hi", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert asked == questions
    asked.clear()
    assert (await chat(worker, "hi")).status_code == 200
    assert "works" in asked


async def test_a_lost_worker_leaves_nothing_behind(pair: Pair) -> None:
    one, other = pair.workers
    tokens = pair.engine.token_gate = asyncio.Semaphore(1)
    lost = [asyncio.ensure_future(chat(one, f"{number}", session_id="s")) for number in range(2)]
    await eventually(lambda: pair.service.replies.under_way, 2)
    await eventually(lambda: len(one.lead._places.get("@ann:s", [])), 2)
    one.channel.close()
    await one.lead.give_back()
    assert pair.service.replies.under_way == 0
    assert await pair.service.replies.quiet("ann", 0.0) == 0
    assert not pair.service.limits._under_way
    session = pair.service.sessions._table.get("@ann:s")
    assert session is not None
    assert session.in_flight == 0
    for _ in range(4 * len(REPLY)):
        tokens.release()
    assert {answer.status_code for answer in await asyncio.gather(*lost)} == {500}
    assert pair.turns() == []
    words_of(await chat(other, "again", session_id="s"))
    assert [turn.session_id for turn in pair.turns()] == ["@ann:s"]


async def test_a_worker_cannot_write_the_ledger(pair: Pair) -> None:
    words_of(await chat(pair.workers[0], "hello"))
    with pytest.raises(LedgerUnavailableError):
        pair.workers[0].service.ledger.turns.record(replace(pair.turns()[0], id="chatcmpl-2"))


async def test_a_channel_keeps_the_order_and_gives_errors_as_they_were_raised() -> None:
    ours, theirs = socket.socketpair()
    heard_first: list[int] = []

    async def refuse() -> None:
        raise ApiError(409, "no", code="taken", limit="places")

    lost = asyncio.Event()
    one = Channel({"note": heard_first.append}, lost.set)

    def announce_then_answer() -> int:
        for number in range(3):
            other.tell("note", number)
        return len(json.dumps("x" * 300_000))

    other = Channel({"refuse": refuse, "work": announce_then_answer}, lambda: None)
    await one.open(ours)
    await other.open(theirs)
    assert await one.ask("work") == 300_002
    assert heard_first == [0, 1, 2], "what was said before an answer came before it"
    with pytest.raises(ApiError) as refused:
        await one.ask("refuse")
    assert (refused.value.status, refused.value.code, refused.value.limit) == (409, "taken", "places")
    waiting = one.ask("refuse")
    other.close()
    with pytest.raises(ChannelLostError):
        await waiting
    await lost.wait()
    with pytest.raises(ChannelLostError):
        await one.ask("work")
