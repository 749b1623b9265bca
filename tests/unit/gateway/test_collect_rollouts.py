"""The collector against a gateway: what it keeps, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from openclaw.ledger.conversations import CONVERSATIONS_NAME
from openclaw.server.collect import CollectError, Collector, main, recorded_model
from tests.unit.gateway.conftest import Stack, Starter

USER: list[Any] = [{"role": "user", "content": "Hello?"}]
KEY = "collector-key"


async def collecting(start: Starter, **changes: Any) -> Stack:
    return await start(serve_rollouts=True, **changes)


async def talk(stack: Stack, messages: list[Any], session: str = "s") -> str:
    stack.say("Hello you.")
    headers = {"X-Session-Id": session, "Authorization": f"Bearer {KEY}"}
    reply = await stack.client.chat.completions.create(model="any", messages=messages, extra_headers=headers)
    return reply.id


def collect(url: str, folder: Path, key: str | None = None) -> int:
    collector = Collector(url, folder, key=key)
    try:
        count = collector.collect()
        collector.write(session_aware=True)
        return count
    finally:
        collector.close()


async def test_turns_and_their_next_states_are_kept(start: Starter, tmp_path: Path) -> None:
    stack, folder = await collecting(start, api_key=KEY), tmp_path / "kept"
    first = await talk(stack, USER)
    assert await asyncio.to_thread(collect, f"{stack.url}/v1", folder, KEY) == 1
    said = {"role": "assistant", "content": "Hello you."}
    await talk(stack, [*USER, said, {"role": "user", "content": "And now?"}])
    await talk(stack, USER, session="other")
    assert await asyncio.to_thread(collect, stack.url, folder, KEY) == 3
    assert await asyncio.to_thread(collect, stack.url, folder, KEY) == 0
    lines = [json.loads(line) for line in (folder / CONVERSATIONS_NAME).read_text().splitlines()]
    assert [(line["session_id"], len(line["turns"])) for line in lines] == [("s", 2), ("other", 1)]
    assert lines[0]["turns"][0]["next_state"] == [{"role": "user", "content": "And now?"}]
    assert recorded_model(folder) == "tiny-policy"
    collector = Collector(stack.url, folder)
    assert collector.ledger.turns.get(first).response_ids == stack.ledger.turns.get(first).response_ids
    assert collector.write(session_aware=False) == 3
    collector.close()


@pytest.mark.parametrize(("key", "words"), [(None, "needs a key"), ("wrong", "needs a key")])
async def test_a_key_is_asked_for(start: Starter, tmp_path: Path, key: str | None, words: str) -> None:
    stack = await collecting(start, api_key=KEY)
    with pytest.raises(CollectError, match=words):
        await asyncio.to_thread(collect, stack.url, tmp_path / "kept", key)


async def test_a_server_that_hands_nothing_out_says_how(stack: Stack, tmp_path: Path) -> None:
    with pytest.raises(CollectError, match="--enable-rl-intercept"):
        await asyncio.to_thread(collect, stack.url, tmp_path / "kept")


async def test_a_position_that_is_none_is_refused(start: Starter) -> None:
    stack = await collecting(start)
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        for query in ("since=x", "after=1.5", "after=99999999999999999999", "since=nan&after=x"):
            assert (await client.get(f"/v1/rollouts?{query}")).status_code == 400, query
        assert (await client.get("/v1/rollouts")).json()["data"] == []


def test_nobody_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--api-endpoint", "http://127.0.0.1:9", "--output-dir", str(tmp_path / "kept"), "--once"]) == 2
    assert "is the server up? Name another with --api-endpoint URL" in capsys.readouterr().err
    assert not (tmp_path / "kept").exists(), "an empty ledger would look like a server without turns"
