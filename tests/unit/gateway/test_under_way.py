"""The file of requests under way: who is in it, and what it never holds."""

from __future__ import annotations

import asyncio
import stat
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Receive, Scope, Send

from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.auth import Keyring
from openclaw.gateway.guard import Doorway, Guard
from openclaw.gateway.limits import Bodies, RateLimits
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.under_way import NONE, SLOTS, InFlightRegistry, read


def test_a_request_is_in_the_file_from_begin_to_end(tmp_path: Path) -> None:
    path = tmp_path / "ledger.requests"
    slots = InFlightRegistry(path)
    assert read(path) == []
    first = slots.begin("req-1", "laptop", "POST", "/v1/chat/completions")
    second = slots.begin("é\n" + "x" * 500, "phone", "DELETE", "/v1/sessions/secret-id/done")
    assert [(each.id[:4], each.key, each.route) for each in read(path)] == [
        ("req-", "laptop", "POST /v1/chat/completions"),
        ("??xx", "phone", "DELETE /v1/sessions"),
    ]
    assert b"secret-id" not in path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    slots.end(first)
    assert [each.key for each in read(path)] == ["phone"]
    assert read(path)[0].line(time.time()).startswith("request=??xxx")
    slots.end(second)
    slots.close()
    assert not path.exists()
    assert read(path) == []


def test_more_requests_than_slots_are_served(tmp_path: Path) -> None:
    slots = InFlightRegistry(tmp_path / "requests")
    taken = [slots.begin(str(number), "-", "GET", "/") for number in range(SLOTS + 2)]
    assert taken[SLOTS:] == [NONE, NONE]
    for slot in taken:
        slots.end(slot)
    assert read(tmp_path / "requests") == []
    assert slots.begin("again", "-", "GET", "/") != NONE


def test_a_folder_that_cannot_be_written_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    slots = InFlightRegistry(tmp_path / "missing" / "requests")
    slots.end(slots.begin("req", "-", "GET", "/"))
    slots.close()
    assert "will not be named" in caplog.text


async def test_the_guard_names_requests_while_they_run(tmp_path: Path) -> None:
    path = tmp_path / "requests"
    inside, leave = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        inside.set()
        await leave.wait()
        raise ConnectionResetError

    config = RuntimeConfig.from_env({})
    guard = Guard(
        app,
        doorway=Doorway(config),
        keyring=Keyring(None),
        bodies=Bodies(config.max_body_bytes),
        limits=RateLimits.of(config),
        metrics=GatewayMetrics(CollectorRegistry()),
        on_refused=lambda path, status: None,
        log_contents=False,
        slots=InFlightRegistry(path),
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://localhost") as client:
        asked: asyncio.Task[Any] = asyncio.create_task(client.get("/v1/models", headers={"x-request-id": "mine"}))
        await inside.wait()
        assert [(each.id, each.key, each.route) for each in read(path)] == [("mine", "local", "GET /v1/models")]
        leave.set()
        with pytest.raises(ConnectionResetError):
            await asked
    assert read(path) == []
