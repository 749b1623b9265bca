"""``--rm-type remote_rm`` against a local server: rewards, retries, patience, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from slime.rollout.rm_hub import async_rm, remote
from slime.rollout.rm_hub.remote import RemoteRewardError
from slime.utils import http_utils
from slime.utils.types import Sample
from tests.unit.rewards.test_graders import options


class RewardServer:
    """Answers each request with the next of ``script``, the last for ever: (status, body), or None for silence."""

    def __init__(self) -> None:
        self.script: list[tuple[int, Any] | None] = []
        self.requests: list[dict[str, Any]] = []
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        self.requests.append(json.loads(await reader.readexactly(length)))
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if answer is not None:
            body = json.dumps(answer[1]).encode()
            writer.write(f"HTTP/1.1 {answer[0]} x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode())
            writer.write(body)
            await writer.drain()
        else:
            await asyncio.sleep(5)
        writer.close()


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RewardServer]:
    monkeypatch.setattr(http_utils, "_http_client", None)
    monkeypatch.setattr(remote, "FIRST_DELAY_SECONDS", 0.01)
    made = RewardServer()
    listener = await asyncio.start_server(made.handle, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/reward"
    yield made
    listener.close()
    if http_utils._http_client is not None:
        await http_utils._http_client.aclose()


async def reward(server: RewardServer) -> Any:
    sample = Sample(prompt="p", response="r", label="l", metadata={"k": 1})
    return await async_rm(options("remote_rm", rm_url=server.url), sample)


async def test_numbers_and_objects_are_rewards(server: RewardServer) -> None:
    server.script = [(200, 0.5), (200, {"score": 1, "why": "x"})]
    assert await reward(server) == 0.5
    assert await reward(server) == {"score": 1, "why": "x"}
    assert server.requests[0] == {"prompt": "p", "response": "r", "label": "l", "metadata": {"k": 1}}


async def test_a_server_that_fails_is_asked_again(server: RewardServer) -> None:
    server.script = [(503, "busy"), (500, "x"), (200, -1)]
    assert await reward(server) == -1
    assert len(server.requests) == 3


async def test_a_server_that_hangs_is_asked_again(server: RewardServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "ATTEMPT_SECONDS", 0.5)
    server.script = [None, (200, 1.0)]
    assert await reward(server) == 1.0


async def test_a_refusal_is_an_error_at_once(server: RewardServer) -> None:
    server.script = [(422, "no such field")]
    with pytest.raises(RemoteRewardError, match=r"refused a sample.*422.*no such field"):
        await reward(server)


@pytest.mark.parametrize("answer", ["good", None, [1], {}, {"score": "1"}, True])
async def test_what_is_no_number_is_an_error(server: RewardServer, answer: Any) -> None:
    server.script = [(200, answer)]
    with pytest.raises(RemoteRewardError, match="must answer with a finite number"):
        await reward(server)


async def test_a_server_that_is_away_is_named_in_the_end(server: RewardServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "ATTEMPTS", 2)
    server.url = f"http://127.0.0.1:{http_utils.find_available_port()}/reward"
    with pytest.raises(RemoteRewardError, match=r"no reward in 2 tries .*is the reward server up\?"):
        await reward(server)
