"""Every request to an engine has the cache key of its owner: no prefix of one owner's prompts is found by another."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import openclaw.engine.client as engine_client
from openclaw.engine.client import CACHE_KEY, CacheKeys
from openclaw.judge.client import PROBE, EngineHttp
from openclaw.owners import LOCAL
from tests.helpers.fake_engine import scripted_transport
from tests.unit.gateway.conftest import Stack, Starter

REPOSITORY = Path(__file__).parents[3]
WORDS: list[Any] = [{"role": "user", "content": "My PIN is 7294."}]
KEYS = "alice: key-a\nalice/tests: key-t\nbob: key-b\nroot (admin): key-r\n"
OPERATOR = "key-o"
SENDERS = ("key-a", "key-t", "key-b", "key-r", OPERATOR)


@pytest.fixture
async def stack(start: Starter, tmp_path: Path) -> Stack:
    path = tmp_path / "keys"
    path.write_text(KEYS)
    path.chmod(0o600)
    return await start(api_keys_file=str(path), api_key=OPERATOR)


def client(stack: Stack, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=stack.url, trust_env=False, headers={"X-Api-Key": key})


async def key_of(stack: Stack, sender: str, session: str = "s", **changes: Any) -> str:
    """Let a client ask; return the cache key that all its requests to the engine had."""
    before = len(stack.engine.requests)
    stack.say(*["Hello."] * changes.get("n", 1))
    async with client(stack, sender) as asking:
        response = await asking.post(
            "/v1/chat/completions", json={"messages": WORDS, **changes}, headers={"X-Session-Id": session}
        )
    assert response.status_code == 200, response.text
    (key,) = {request[CACHE_KEY] for request in stack.engine.requests[before:]}
    return key


async def test_each_owner_has_a_key_of_its_own_for_all_that_it_asks(stack: Stack) -> None:
    keys = {sender: await key_of(stack, sender) for sender in SENDERS}
    assert len({*keys.values()}) == len(SENDERS)
    assert all(re.fullmatch("[0-9a-f]{32}", key) for key in keys.values())
    for sender, key in keys.items():
        assert await key_of(stack, sender, session="another") == key
        assert await key_of(stack, sender, stream=True, n=2) == key


async def test_keys_are_random_for_each_server(start: Starter) -> None:
    first, second = await start(), await start()
    assert await key_of(first, "") != await key_of(second, "")


async def test_a_reply_that_another_engine_goes_on_with_keeps_its_key(stack: Stack) -> None:
    stack.engine.break_after = 1
    await key_of(stack, "key-a")
    assert len(stack.engine.requests) > 1


async def test_each_episode_has_a_key_of_its_own(stack: Stack) -> None:
    keys = [await key_of(stack, "key-a")]
    async with client(stack, "key-a") as http:
        for _ in range(2):
            body = {"task": "count", "ttl_s": 60.0, "group": "g", "group_size": 2}
            episode = (await http.post("/v1/episodes", json=body)).json()
            keys += [await key_of(stack, episode["api_key"])]
            assert await key_of(stack, episode["api_key"]) == keys[-1]
    assert len(set(keys)) == 3


@pytest.mark.parametrize(("sender", "named"), [("key-a", "s"), ("key-r", "@alice:s"), (OPERATOR, "@alice:s")])
async def test_forgetting_a_session_renews_the_key_of_its_owner_alone(stack: Stack, sender: str, named: str) -> None:
    before = {who: await key_of(stack, who) for who in SENDERS}
    async with client(stack, sender) as http:
        assert (await http.delete(f"/v1/sessions/{named}")).status_code == 200
        assert (await http.delete("/v1/sessions/unknown")).status_code == 404
    after = {who: await key_of(stack, who, session="new") for who in SENDERS}
    assert after.pop("key-a") != before.pop("key-a")
    assert after == before


async def test_the_end_of_the_retention_time_renews_the_key(stack: Stack) -> None:
    before = await key_of(stack, "key-a")
    stack.clock[0] += 1000
    assert await stack.service.sessions.forget_quiet(stack.clock[0] - 1) == 1
    assert await key_of(stack, "key-a") != before


async def test_a_session_that_another_process_forgot_renews_the_key_at_its_next_reply(stack: Stack) -> None:
    before = await key_of(stack, "key-a")
    stack.ledger.sessions.forget("@alice:s")
    await key_of(stack, "key-a")
    assert await key_of(stack, "key-a", session="new") != before


@pytest.mark.parametrize("name", [CACHE_KEY, "cache_salt"])
async def test_a_client_cannot_choose_a_key(stack: Stack, name: str) -> None:
    async with client(stack, "key-b") as http:
        response = await http.post("/v1/chat/completions", json={"messages": WORDS, name: "guess"})
    assert response.status_code == 400
    assert name in response.text
    assert not stack.engine.requests


async def test_judge_and_teacher_share_no_key_with_anybody() -> None:
    seen: list[dict[str, str]] = []
    for _ in range(2):
        transport, requests = scripted_transport([{"text": "fine"}])
        engine = EngineHttp("http://judge", timeout=5.0, concurrency=4, transport=transport)
        for owner in (None, LOCAL, "alice", "alice", None):
            await engine.generate({"input_ids": [1]}, owner)
        assert await engine.answers()
        bodies = [json.loads(request.content) for request in requests]
        assert bodies[-1].items() > PROBE.items()
        assert bodies[0][CACHE_KEY] == bodies[4][CACHE_KEY] == bodies[5][CACHE_KEY]
        assert bodies[2][CACHE_KEY] == bodies[3][CACHE_KEY]
        seen.append({name: bodies[place][CACHE_KEY] for name, place in {"own": 0, "local": 1, "alice": 2}.items()})
        await engine.close()
    assert len({key for each in seen for key in each.values()}) == 6


def test_who_loses_a_key_gets_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "MAX_OWNERS", 2)
    keys = CacheKeys()
    first = {owner: keys.of(owner) for owner in ("a", "b")}
    assert keys.of("a") == first["a"]
    keys.of("c")
    assert keys.of("a") == first["a"]
    assert keys.of("b") != first["b"]


def test_nothing_else_in_the_runtime_asks_an_engine() -> None:
    """Whatever posts to `/generate` is known here, so that a new path is not forgotten."""
    asks: Callable[[str], bool] = lambda text: re.search(r"post\([^)]*/generate", text) is not None  # noqa: E731
    found = {
        str(path.relative_to(REPOSITORY)): CACHE_KEY in text or "CACHE_KEY" in text
        for folder in ("openclaw", "agentrl")
        for path in (REPOSITORY / folder).rglob("*.py")
        if asks(text := path.read_text())
    }
    assert found == dict.fromkeys(
        [
            *(
                "openclaw/engine/client.py",
                "openclaw/judge/client.py",
                "openclaw/gate/plugin.py",
                "openclaw/gate/proof.py",
            ),
            "openclaw/tinker/sampler.py",
        ],
        True,
    )
