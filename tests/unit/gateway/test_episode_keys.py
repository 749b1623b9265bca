"""The key of an episode opens the model, for its own agent, while the episode lasts, and nothing else."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest

from groundwork.exceptions import ConfigError
from openclaw.gateway.auth import Keyring, read_keys
from openclaw.privacy.redactor import Redactor
from tests.unit.gateway.conftest import Stack, Starter

HELLO: list[Any] = [{"role": "user", "content": "hi there"}]
KEYS = "alice: key-a\nbob: key-b\nroot (admin): key-r\n"
NEW = {"task": "count", "ttl_s": 60.0}


@pytest.fixture
async def keyed(start: Starter, tmp_path: Path) -> Stack:
    path = tmp_path / "keys"
    path.write_text(KEYS)
    path.chmod(0o600)
    return await start(api_keys_file=str(path), serve_rollouts=True)


def client(stack: Stack, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=stack.url, trust_env=False, headers={"Authorization": f"Bearer {key}"})


async def create(stack: Stack, key: str) -> dict[str, Any]:
    async with client(stack, key) as http:
        response = await http.post("/v1/episodes", json=NEW)
        assert response.status_code == 200, response.text
        return response.json()


async def ask(stack: Stack, key: str, session: str = "s", words: str = "Hello.") -> httpx.Response:
    stack.say(words)
    async with client(stack, key) as http:
        return await http.post("/v1/chat/completions", json={"messages": HELLO}, headers={"X-Session-Id": session})


async def everything_else(stack: Stack, key: str, episode: str, reply: str) -> list[tuple[int, str]]:
    """Try every other route with a key; return status and code of each."""
    async with client(stack, key) as http:
        answers = [
            await http.post("/v1/feedback", json={"response_id": reply, "thumbs": "up"}),
            await http.get(f"/v1/turns/{reply}"),
            await http.post("/v1/sessions/s/done"),
            await http.delete("/v1/sessions/s"),
            await http.get("/v1/rollouts"),
            await http.post("/v1/episodes", json=NEW),
            await http.post(f"/v1/episodes/{episode}/reward", json={"reward": 1.0, "status": "ok"}),
            await http.get(f"/v1/episodes/{episode}"),
            await http.delete(f"/v1/episodes/{episode}"),
            await http.get("/metrics"),
            await http.get("/openapi.json"),
            await http.get("/v1/chat/completions"),
            await http.post("/v1/models"),
            await http.get("/v1/modelsx"),
        ]
        return [(answer.status_code, answer.json()["error"]["code"]) for answer in answers]


@pytest.mark.parametrize("keyless", [False, True])
async def test_an_agent_may_only_ask_the_model(start: Starter, keyed: Stack, keyless: bool) -> None:
    stack = await start() if keyless else keyed
    episode = await create(stack, "key-a")
    reply = (await ask(stack, episode["api_key"])).json()["id"]
    assert set(await everything_else(stack, episode["api_key"], episode["id"], reply)) == {(403, "episode_key")}
    async with client(stack, episode["api_key"]) as http:
        models = (await http.get("/v1/models")).json()["data"]
        assert (await http.get(f"/v1/models/{models[0]['id']}")).status_code == 200
    [turn] = stack.turns()
    parent = "" if keyless else "alice"
    assert turn.session_id == f"@{parent}/{episode['id']}:s"
    assert stack.ledger.episodes.get(episode["id"]).state == "open"


async def test_an_ended_key_is_nobodys_also_without_keys(stack: Stack) -> None:
    episode = await create(stack, "whatever")
    assert (await ask(stack, "any other word")).status_code == 200
    async with client(stack, "any other word") as http:
        await http.post(f"/v1/episodes/{episode['id']}/reward", json={"reward": None, "status": "infra_error"})
    for key in (episode["api_key"], episode["api_key"][:-1], "sk-episode-", "sk-episode-guess"):
        assert (await ask(stack, key)).status_code == 401


async def test_an_episode_belongs_to_who_created_it(keyed: Stack) -> None:
    episode = await create(keyed, "key-a")
    reply = (await ask(keyed, episode["api_key"])).json()["id"]
    async with client(keyed, "key-b") as bob, client(keyed, "key-a") as alice, client(keyed, "key-r") as root:
        refused = [
            await bob.get(f"/v1/episodes/{episode['id']}"),
            await bob.delete(f"/v1/episodes/{episode['id']}"),
            await bob.post(f"/v1/episodes/{episode['id']}/reward", json={"reward": 1.0, "status": "ok"}),
        ]
        unknown = await bob.get("/v1/episodes/episode-none")
        for answer in refused:
            assert answer.status_code == 404
            assert answer.text.replace(episode["id"], "episode-none") == unknown.text
        assert (await bob.get(f"/v1/turns/{reply}")).status_code == 404
        assert (await alice.get(f"/v1/turns/{reply}")).json()["reason"] == "episode"
        assert (await root.get(f"/v1/episodes/{episode['id']}")).status_code == 200
        feedback = await alice.post("/v1/feedback", json={"response_id": reply, "thumbs": "up"})
        assert feedback.json() == {"object": "feedback", "response_id": reply, "applied": False, "reason": "episode"}


async def test_two_episodes_and_their_owner_never_share_a_session(keyed: Stack) -> None:
    first, second = await create(keyed, "key-a"), await create(keyed, "key-a")
    for key in (first["api_key"], second["api_key"], "key-a"):
        assert (await ask(keyed, key)).status_code == 200
    sessions = {turn.session_id for turn in keyed.turns()}
    assert sessions == {f"@alice/{first['id']}:s", f"@alice/{second['id']}:s", "@alice:s"}
    assert (await ask(keyed, second["api_key"], session=f"@alice/{first['id']}:s")).status_code == 200
    assert keyed.turns()[-1].session_id.startswith(f"@alice/{second['id']}:")


async def test_a_key_goes_with_the_key_that_created_it(keyed: Stack, tmp_path: Path, start: Starter) -> None:
    episode = await create(keyed, "key-a")
    (tmp_path / "keys").write_text(KEYS.replace("alice: key-a\n", ""))
    later = await start(api_keys_file=str(tmp_path / "keys"))
    assert (await ask(later, episode["api_key"])).status_code == 401


async def test_the_limits_and_metrics_of_an_agent_are_its_owners(keyed: Stack, start: Starter, tmp_path: Path) -> None:
    episode = await create(keyed, "key-a")
    await ask(keyed, episode["api_key"])
    assert keyed.metric("openclaw_key_requests_total", key="alice", code="200") == 2
    limited = await start(api_keys_file=str(tmp_path / "keys"), rate_limit_requests=2)
    answers = [(await ask(limited, episode["api_key"])).status_code for _ in range(3)]
    assert answers == [200, 200, 429]


async def test_no_log_and_no_file_has_the_key(keyed: Stack, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.DEBUG)
    episode = await create(keyed, "key-a")
    secret = episode["api_key"]
    await ask(keyed, secret)
    async with client(keyed, secret) as http:
        await http.get("/v1/rollouts", headers={"X-Request-Id": secret})
    async with client(keyed, "key-a") as http:
        told = (await http.get(f"/v1/episodes/{episode['id']}")).text
        assert secret not in told
        assert "key" not in told
    keyed.ledger.close()
    assert secret not in caplog.text
    for file in tmp_path.glob("ledger*"):
        assert secret.encode() not in file.read_bytes(), file


def test_a_key_in_a_text_is_redacted() -> None:
    key = "sk-episode-" + "aB3-_x" * 7
    assert Redactor("secrets").text(f"API_KEY={key}\n") == "API_KEY=[REDACTED:api_key]\n"


def test_no_key_of_a_file_is_named_like_an_episode(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("alice: key-a\nalice/episode-1: key-e\n")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"line 2: names that begin with 'episode-'"):
        read_keys(path)


def test_an_own_key_may_look_like_an_episodes() -> None:
    ring = Keyring("sk-episode-mine")
    assert ring.check({"x-api-key": "sk-episode-mine"}).admin
