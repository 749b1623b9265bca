"""Hostile services and arguments end as errors that the agent sees."""

import asyncio
from typing import Any

import pytest

from agentrl.exceptions import InvalidError
from agentrl.sandbox.interface import Sandbox
from agentrl.tasks.toolcall import schemas
from agentrl.tasks.toolcall.tools.http import HttpTool
from agentrl.tasks.toolcall.tools.interface import Room, World
from groundwork.exceptions import ConfigError


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


LARGE: dict[str, dict[str, Any]] = {
    "texts": {"x": {"enum": ["a" * 10_000 + str(number) for number in range(600)]}},
    "one text": {"x": {"const": "a" * 6_000_000}},
    "values": {"x": {"const": [0] * 60_000}},
    "lists": {"x": {"enum": [[0] * 100] * 600}},
    "types": {"x": {"type": ["string"] * 60_000}},
    "names": {f"{number}{'a' * 1000}": {} for number in range(6000)},
    "properties": {f"p{number}": {} for number in range(60_000)},
}


@pytest.mark.parametrize("why", LARGE)
async def test_what_is_too_large_to_check_is_refused_at_once(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "_pool", lambda: pytest.fail("it was sent to a worker"))
    with pytest.raises(ConfigError, match=r"^t: its parameters have more than 50000 values; do without that tool$"):
        await schemas.check_foreign_schema("t", {"type": "object", "properties": LARGE[why]})
    with pytest.raises(InvalidError, match="the arguments have more than 50000 values; send shorter ones"):
        await schemas.problems_of({"type": "object"}, LARGE[why])
