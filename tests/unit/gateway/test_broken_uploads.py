"""A client that goes away while it still sends its request: counted and logged as gone, not as a defect."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import urlsplit

import pytest

from lab.testkit.waiting import eventually
from tests.unit.gateway.conftest import Stack


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/feedback"])
async def test_a_body_that_breaks_off_is_a_client_that_left(
    stack: Stack, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "openclaw.access")
    address = urlsplit(stack.url)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    writer.write(head.encode() + b'{"messages": ')
    await writer.drain()
    writer.close()
    await eventually(lambda: any("POST - status=499" in line for line in caplog.messages), wanted=True)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    if path == "/v1/chat/completions":
        assert stack.metric("openclaw_requests_total", code="499") == 1
    assert stack.metric("openclaw_requests_total", code="500") == 0
