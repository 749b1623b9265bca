"""``GET /v1/usage`` tells each owner its own tokens; a quota refuses replies, in each API's words, and nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from groundwork.exceptions import ConfigError
from lab.testkit.engine import serve
from openclaw.config.meters import read_prices, read_quotas
from openclaw.gateway.limits import RateLimitError, RateLimits
from openclaw.ledger.records import Tokens
from openclaw.owners import LOCAL
from tests.unit.gateway.conftest import Stack, Starter

HELLO: list[Any] = [{"role": "user", "content": "hi there"}]
KEYS = "alice: key-a\nalice/tests (sampled=1000): key-t\nbob (sampled=3, total=100000): key-b\nroot (admin): key-r\n"
OPERATOR = "key-o"
DAY = "1970-01-01"
"""Of the gateway's clock in these tests."""
LEFT = 86400 - 1000
REPLIES = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 9},
}


@dataclass
class Clients:
    """A gateway with the keys of `KEYS`, and a client for each of them by name."""

    stack: Stack
    of: dict[str, httpx.AsyncClient]

    async def say(self, name: str, text: str = "Hello.", **body: Any) -> dict[str, Any]:
        """Let somebody ask, and return the reply's usage."""
        self.stack.say(*([text] * body.get("n", 1)))
        answer = await self.of[name].post("/v1/chat/completions", json={"messages": HELLO, **body})
        assert answer.status_code == 200, answer.text
        return answer.json()["usage"]

    async def usage(self, name: str, **query: str) -> dict[str, Any]:
        answer = await self.of[name].get("/v1/usage", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
async def clients(start: Starter, tmp_path: Path) -> AsyncIterator[Clients]:
    path = tmp_path / "keys"
    path.write_text(KEYS)
    path.chmod(0o600)
    stack = await start(
        api_keys_file=str(path), api_key=OPERATOR, quotas="total=200", prices="prefill=2,cached=1,sampled=1e6"
    )
    async with AsyncExitStack() as opened:
        named = {"alice": "key-a", "alice/tests": "key-t", "bob": "key-b", "root": "key-r", "operator": OPERATOR}
        of = {
            name: await opened.enter_async_context(
                httpx.AsyncClient(base_url=stack.url, trust_env=False, headers={"X-Api-Key": key})
            )
            for name, key in named.items()
        }
        yield Clients(stack, of)


def shown(page: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return the prompt and sampled tokens by owner of a page of one day."""
    return {
        each["owner"]: (each["prefill_tokens"] + each["cached_tokens"], each["sampled_tokens"])
        for bucket in page["data"]
        for each in bucket["results"]
    }


async def test_an_owner_sees_what_its_replies_told_and_an_admin_sees_all(clients: Clients) -> None:
    told: dict[str, tuple[int, int]] = {}
    for name in ("alice", "alice/tests", "operator"):
        usage = await clients.say(name)
        told[name if name != "operator" else "local"] = usage["prompt_tokens"], usage["completion_tokens"]
    for admin in ("root", "operator"):
        assert shown(await clients.usage(admin)) == told
    assert shown(await clients.usage("alice")) == {name: told[name] for name in ("alice", "alice/tests")}
    assert shown(await clients.usage("alice/tests")) == {"alice/tests": told["alice/tests"]}
    assert await clients.usage("bob") | {"quota": None} == {
        "object": "page",
        "since": "1969-12-02",
        "until": DAY,
        "data": [],
        "total": {f"{name}_tokens": 0 for name in ("prefill", "cached", "sampled", "judged", "trained", "stale")}
        | {"dollars": 0.0},
        "quota": None,
    }
    assert shown(await clients.usage("root", owner="local")) == {"local": told["local"]}
    assert shown(await clients.usage("alice", owner="alice/tests")) == {"alice/tests": told["alice/tests"]}
    assert shown(await clients.usage("root", since="1970-01-02", until="1970-02-01")) == {}
    assert shown(await clients.usage("root", until="0001-01-01")) == {}
    assert (await clients.usage("alice"))["data"][0]["day"] == DAY


async def test_several_choices_count_their_prompt_once_as_the_reply_says(clients: Clients) -> None:
    usage = await clients.say("alice", n=3)
    total = (await clients.usage("alice"))["total"]
    assert total["prefill_tokens"] + total["cached_tokens"] == usage["prompt_tokens"]
    assert total["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert total["sampled_tokens"] == usage["completion_tokens"]
    paid = 2 * total["prefill_tokens"] + total["cached_tokens"] + 1e6 * total["sampled_tokens"]
    assert total["dollars"] == pytest.approx(paid / 1e6, abs=1e-6)


async def test_a_foreign_and_an_unknown_owner_get_the_same_refusal(clients: Clients) -> None:
    await clients.say("alice")
    answers = [
        await clients.of["bob"].get("/v1/usage", params={"owner": name}) for name in ("alice", "nobody", "local")
    ]
    assert [answer.status_code for answer in answers] == [403] * 3
    assert len({answer.text for answer in answers}) == 1
    keyless = httpx.AsyncClient(base_url=clients.stack.url, trust_env=False)
    async with keyless:
        assert (await keyless.get("/v1/usage")).status_code == 401
    wrong = await clients.of["root"].get("/v1/usage", params={"since": "yesterday"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "since")


@pytest.mark.parametrize("path", REPLIES)
async def test_a_used_quota_refuses_replies_in_the_words_of_each_api(clients: Clients, path: str) -> None:
    stack = clients.stack
    await clients.say("bob", "one two three four")
    generated = len(stack.engine.requests)
    for streams in (False, True):
        answer = await clients.of["bob"].post(path, json={"model": "any", "stream": streams, **REPLIES[path]})
        assert answer.status_code == 429, answer.text
        assert int(answer.headers["retry-after"]) == LEFT
        error = answer.json()["error"]
        assert "'bob' has used its 3 sampled tokens" in error["message"]
        assert f"send it again in {LEFT} s" in error["message"]
        if path == "/v1/messages":
            assert (answer.json()["type"], error["type"]) == ("error", "rate_limit_error")
        else:
            assert (error["type"], error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert len(stack.engine.requests) == generated, "nothing was generated"
    assert stack.metric("openclaw_rate_limited_total", key="bob", limit="quota") == 2
    assert stack.metric("openclaw_requests_total", code="429") == 2
    await clients.say("alice")


async def test_what_is_no_reply_goes_on_without_quota_and_the_next_day_begins_anew(clients: Clients) -> None:
    stack = clients.stack
    await clients.say("bob", "one two three four")
    session = stack.turns()[0].session_id.partition(":")[2]
    used = (await clients.usage("bob"))["quota"]
    assert (used["day"], used["ends_in"], used["sampled"]["most"]) == (DAY, LEFT, 3)
    assert used["sampled"]["used"] > 3
    assert used["total"]["used"] > used["sampled"]["used"]
    thumb = {"response_id": stack.turns()[0].id, "thumbs": "up"}
    assert (await clients.of["bob"].post("/v1/feedback", json=thumb)).status_code == 200
    assert (await clients.of["bob"].delete(f"/v1/sessions/{session}")).status_code == 200
    assert (await clients.usage("bob"))["quota"] == used, "a deletion gives no quota back"
    stack.clock[0] += LEFT
    await clients.say("bob")


async def test_a_child_uses_its_parents_quota_too(clients: Clients) -> None:
    clients.stack.ledger.usage.add("alice/tests", Tokens(prefill=200))
    for name in ("alice", "alice/tests"):
        answer = await clients.of[name].post("/v1/chat/completions", json={"messages": HELLO})
        assert answer.status_code == 429
        assert "'alice' has used its 200 tokens of prompts and replies" in answer.json()["error"]["message"]
    await clients.say("bob")


async def test_the_metrics_have_the_totals_of_all(clients: Clients) -> None:
    await clients.say("alice")
    clients.stack.ledger.usage.add("bob", Tokens(judged=11, trained=5))
    text = (await clients.of["root"].get("/metrics")).text
    assert 'openclaw_usage_tokens{kind="judged"} 11.0' in text
    assert 'openclaw_usage_tokens{kind="trained"} 5.0' in text
    sampled = shown(await clients.usage("alice"))["alice"][1]
    assert f'openclaw_usage_tokens{{kind="sampled"}} {sampled:.1f}' in text


async def test_without_quotas_nothing_asks_the_ledger(stack: Stack) -> None:
    assert stack.service.limits.check_quota is None
    limits = RateLimits()

    async def refuse(key: str) -> None:
        raise RateLimitError("quota", "used up", 5)

    limits.check_quota = refuse
    await limits.enter("a")
    with pytest.raises(RateLimitError):
        await limits.enter("a", reply=True)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (read_prices, "prefill=-1"),
        (read_prices, "prefil=1"),
        (read_prices, "prefill=1,prefill=2"),
        (read_prices, "prefill=nan"),
        (read_prices, "prefill"),
        (read_quotas, "judged=5"),
        (read_quotas, "total=1.5"),
    ],
)
def test_what_is_no_price_or_quota_is_refused_with_an_example(read: Any, text: str) -> None:
    with pytest.raises(ConfigError, match="write for example"):
        read(text)


def test_prices_and_quotas_are_read() -> None:
    assert read_prices("prefill=0.1, trained=1") == {"prefill": 0.1, "trained": 1.0}
    assert read_quotas("total=5") == {"total": 5}
    assert (read_prices(None), read_quotas(None)) == ({}, {})


async def test_what_a_service_sampled_after_its_client_left_is_counted_once_it_has_finished(start: Starter) -> None:
    asked, finish = asyncio.Event(), asyncio.Event()

    async def answer(request: Request) -> Response:
        if request.url.path == "/abort_request":

            async def took() -> AsyncIterator[bytes]:
                await finish.wait()
                yield b'{"completion_tokens": 7}'

            return StreamingResponse(took(), 202)

        async def reply() -> AsyncIterator[bytes]:
            asked.set()
            await asyncio.Event().wait()
            yield b""

        return StreamingResponse(reply(), media_type="text/event-stream")

    async def eventually(expected: Tokens) -> None:
        async with asyncio.timeout(20):
            while stack.ledger.usage.total(owner=LOCAL) != expected:
                await asyncio.sleep(0.01)

    routes = [Route(path, answer, methods=["POST"]) for path in ("/generate", "/abort_request")]
    async with serve(Starlette(routes=routes)) as url:
        stack: Stack = await start(engine_url=url)
        asking = asyncio.create_task(stack.client.chat.completions.create(model="any", messages=HELLO))
        await asked.wait()
        asking.cancel()
        async with asyncio.timeout(20):
            while not stack.turns():
                await asyncio.sleep(0.01)
        [turn] = stack.turns()
        prompt = len(turn.prompt_ids)
        assert (turn.reason, turn.response_ids) == ("aborted", [])
        await eventually(Tokens(prefill=prompt))
        finish.set()
        await eventually(Tokens(prefill=prompt, sampled=7))
