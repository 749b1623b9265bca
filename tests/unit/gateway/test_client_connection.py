"""Work for a client ends when the client goes away, and for no other reason; silences are broken by heartbeats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import MutableMapping
from typing import Any

import pytest

from lab.testkit.waiting import eventually
from openclaw.gateway.dialects.chat import ChatForm
from openclaw.gateway.dialects.dialect import COMMENT
from openclaw.gateway.errors import ClientGoneError
from openclaw.gateway.stream import Connected, Heartbeats


class Client:
    """The receiving half of a request: nothing comes until it leaves."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> MutableMapping[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_work_is_cancelled_when_its_client_leaves() -> None:
    client, cancelled = Client(), False

    async def answer() -> None:
        nonlocal cancelled
        async with Connected(client.receive):
            client.left.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled = True
                raise

    with pytest.raises(ClientGoneError):
        await asyncio.wait_for(answer(), 5)
    assert cancelled


async def test_a_client_that_leaves_after_the_work_disturbs_nothing() -> None:
    client = Client()
    async with Connected(client.receive):
        await asyncio.sleep(0)
        client.left.set()
    for _ in range(5):
        await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_other_errors_and_cancellations_stay_what_they_are() -> None:
    client = Client()
    with pytest.raises(ValueError, match="own"):
        async with Connected(client.receive):
            raise ValueError("own")

    async def wait() -> None:
        async with Connected(client.receive):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_heartbeats_break_silences_until_they_are_stopped() -> None:
    sent: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["body"])

    heartbeats = Heartbeats(send, 0.001, ChatForm().heartbeat)
    await eventually(lambda: len(sent) >= 3, True)
    await heartbeats.stop()
    assert set(sent) == {COMMENT}
    count = len(sent)
    await asyncio.sleep(0.02)
    assert len(sent) == count


async def test_a_stream_that_is_not_silent_gets_no_heartbeats() -> None:
    sent: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["body"])

    heartbeats = Heartbeats(send, 0.001, ChatForm().heartbeat)
    heartbeats.sent_at = time.monotonic() + 1000
    await asyncio.sleep(0.02)
    await heartbeats.stop()
    assert sent == []
