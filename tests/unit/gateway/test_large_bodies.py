"""Large bodies are read in a worker process, which may die, and ends with its parent."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import psutil
import pytest

from lab.testkit.waiting import wait_until
from openclaw.config.bounds import LARGE_BODIES, LARGE_BODY
from openclaw.gateway import large_bodies
from openclaw.gateway.dialects import CHAT
from openclaw.gateway.dialects.dialect import unslim
from openclaw.gateway.errors import ApiError
from openclaw.gateway.large_bodies import LargeBodies
from openclaw.gateway.schema import parse_request
from tests.unit.gateway.conftest import Stack

pytestmark = pytest.mark.slow

CONTEXT = 2048
USER: Any = {"role": "user", "content": "Hello?"}
PADDING = "x" * LARGE_BODY.most


@pytest.fixture
async def reader() -> AsyncIterator[LargeBodies]:
    reader = LargeBodies(CONTEXT)
    yield reader
    await reader.close()


def body_of(**more: Any) -> bytes:
    return json.dumps({"messages": [{**USER, "junk": PADDING}], "metadata": {"a": PADDING}, **more}).encode()


async def test_the_short_body_is_the_same_request(reader: LargeBodies) -> None:
    more: dict[str, Any] = {
        "temperature": 1,
        "top_k": None,
        "stop": ["a"],
        "tools": [{"function": {"parameters": {"b": 1, "a": 2}, "name": "f"}, "type": "function", "junk": PADDING}],
        "tool_choice": {"type": "function", "function": {"name": "f"}, "junk": PADDING},
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
        "stream_options": {"include_usage": True},
        "logit_bias": {"5": 1.5},
    }
    body = body_of(**more)
    slim = await reader.slim(body, CHAT)
    assert len(slim) < 1_000
    here, there = CHAT.read(body, CONTEXT), unslim(CHAT, slim)
    assert (there.request, there.form) == (here.request, here.form)
    assert [orjson.dumps(there.raw[name]) for name in ("messages", "tools")] == [
        orjson.dumps(here.raw[name]) for name in ("messages", "tools")
    ]


async def test_a_refusal_comes_back_whole(reader: LargeBodies) -> None:
    for body in (b"[" * LARGE_BODY.most, body_of(top_k=-9), body_of(messages=[{**USER, "content": PADDING}])):
        with pytest.raises(ApiError) as here:
            parse_request(body, CONTEXT)
        with pytest.raises(ApiError) as there:
            await reader.slim(body, CHAT)
        assert vars(there.value) == vars(here.value)


async def test_a_worker_that_dies_is_replaced(reader: LargeBodies) -> None:
    await reader.slim(body_of(), CHAT)
    assert reader._worker is not None
    first = reader._worker.pid
    await reader.slim(body_of(), CHAT)
    assert reader._worker.pid == first
    reader._worker.kill()
    assert unslim(CHAT, await reader.slim(body_of(), CHAT)).raw["messages"] == [USER]
    assert reader._worker.pid != first


async def test_a_body_under_which_workers_die_is_refused(reader: LargeBodies, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start() -> asyncio.subprocess.Process:
        starts.append(1)
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", "head -c 1000 > /dev/null", stdin=pipe, stdout=pipe
        )

    starts: list[int] = []
    monkeypatch.setattr(large_bodies, "_start", start)
    with pytest.raises(ApiError) as caught:
        await reader.slim(body_of(), CHAT)
    assert caught.value.status == 400
    assert len(starts) == large_bodies.ATTEMPTS


async def test_a_worker_that_has_grown_ends(reader: LargeBodies) -> None:
    values = orjson.dumps({"messages": [USER], "metadata": [[0] for _ in range(3_000_000)]})
    assert unslim(CHAT, await reader.slim(values, CHAT)).raw == {"messages": [USER]}
    assert reader._worker is None
    assert unslim(CHAT, await reader.slim(body_of(), CHAT)).raw["messages"] == [USER]


async def test_a_caller_that_leaves_does_not_mix_up_answers(reader: LargeBodies) -> None:
    await reader.slim(body_of(), CHAT)
    left = asyncio.create_task(reader.slim(body_of(temperature=1), CHAT))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    assert "temperature" not in unslim(CHAT, await reader.slim(body_of(), CHAT)).raw


async def test_bodies_that_wait_are_bounded(reader: LargeBodies, monkeypatch: pytest.MonkeyPatch) -> None:
    reader._waiting_bytes = LARGE_BODIES.most
    with pytest.raises(ApiError) as caught:
        await reader.slim(body_of(), CHAT)
    assert (caught.value.status, caught.value.limit) == (503, "large_bodies")
    assert reader._waiting_bytes == LARGE_BODIES.most


async def test_the_server_answers_others_while_it_reads(stack: Stack, http: httpx.AsyncClient) -> None:
    stack.say("one")
    json = {"content-type": "application/json"}
    large = asyncio.create_task(http.post("/v1/chat/completions", content=body_of(), headers=json, timeout=60))
    while not stack.service.large_bodies._waiting_bytes and not large.done():
        assert (await http.get("/healthz")).status_code == 200
    assert (await large).status_code == 200
    worker = stack.service.large_bodies._worker
    assert worker is not None
    assert psutil.Process(worker.pid).ppid() == os.getpid()


PARENT = """
import asyncio, sys
from openclaw.gateway.dialects import CHAT
from openclaw.gateway.large_bodies import LargeBodies

async def main():
    reader = LargeBodies(2048)
    await reader.slim(b'{"messages": [{"role": "user", "content": "x"}]}', CHAT)
    print(reader._worker.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_a_worker_ends_with_its_parent_however_that_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
    wait_until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, lambda: "it lives", 30.0)
