"""Hostile services and arguments end as errors that the agent sees."""

import asyncio

import pytest

from agentrl.exceptions import InvalidError
from agentrl.sandbox.interface import Sandbox
from agentrl.tasks.toolcall.tools.http import HttpTool
from agentrl.tasks.toolcall.tools.interface import Room, World


async def _no_room(room: Room) -> Sandbox:
    raise AssertionError(room)


WORLD = World({}, {}, _no_room)


def test_arguments_too_long_for_a_url_are_an_error_of_the_call() -> None:
    tool = HttpTool("t", "", {}, "http://127.0.0.1:9", "GET", 1.0)
    with pytest.raises(InvalidError, match="does not answer"):
        asyncio.run(tool.call({"a": "x" * 100_000}, WORLD))


@pytest.mark.parametrize("value", [float("nan"), "\ud800"])
def test_arguments_that_json_cannot_carry_are_an_error_of_the_call(value: float | str) -> None:
    tool = HttpTool("t", "", {}, "http://127.0.0.1:9", "POST", 1.0)
    with pytest.raises(InvalidError, match="cannot be sent"):
        asyncio.run(tool.call({"a": value}, WORLD))


def test_a_service_that_trickles_ends_at_the_time_limit() -> None:
    async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
        except ConnectionError:
            writer.close()

    async def play() -> None:
        server = await asyncio.start_server(trickle, "127.0.0.1", 0)
        tool = HttpTool("t", "", {}, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "GET", 0.5)
        with pytest.raises(InvalidError, match="TimeoutError"):
            await asyncio.wait_for(tool.call({}, WORLD), 30)
        server.close()

    asyncio.run(play())
