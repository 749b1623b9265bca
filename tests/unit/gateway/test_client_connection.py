"""Work for a client ends when the client goes away, and for no other reason; silences are broken by comments."""

from __future__ import annotations

import asyncio
import time
from collections.abc import MutableMapping
from typing import Any

import pytest

from lab.testkit.waiting import eventually
from openclaw.gateway.errors import ClientGoneError
from openclaw.gateway.stream import COMMENT, Comments, Connected


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


async def test_comments_break_silences_until_they_are_stopped() -> None:
    sent: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["body"])

    comments = Comments(send, 0.001)
    await eventually(lambda: len(sent) >= 3, True)
    await comments.stop()
    assert set(sent) == {COMMENT}
    count = len(sent)
    await asyncio.sleep(0.02)
    assert len(sent) == count


async def test_a_stream_that_is_not_silent_gets_no_comments() -> None:
    sent: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message["body"])

    comments = Comments(send, 0.001)
    comments.sent_at = time.monotonic() + 1000
    await asyncio.sleep(0.02)
    await comments.stop()
    assert sent == []
