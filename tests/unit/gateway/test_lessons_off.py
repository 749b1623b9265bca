"""Without lessons the engine gets what it got before there were any: the digests were taken from the commit before."""

from __future__ import annotations

import hashlib
import json

import httpx
import pytest

from tests.unit.gateway.conftest import Stack, Starter
from tests.unit.gateway.test_captured_requests import CLIENTS, replay

RANDOM = ("rid", "extra_key", "routing_key")
"""What differs between two runs of the same traffic."""
BEFORE = dict.fromkeys(CLIENTS, "07ceb90e8ac89427b2e0c89d06196ea288e17a5f4de892d481c569637ff4e68f") | {
    "nothing but messages": "85fac340764dbfeed15812292857cd7ff3be2139dc69c63ea7da788086f7ea9d"
}


async def digest_of_traffic(stack: Stack, name: str) -> str:
    """Return the SHA-256 of all that the engine got for the recorded requests of OpenClaw."""
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as http:
        await replay(stack, http, CLIENTS[name])
    sent = [{key: value for key, value in item.items() if key not in RANDOM} for item in stack.engine.requests]
    assert len(sent) >= 36
    return hashlib.sha256(json.dumps(sent, sort_keys=True).encode()).hexdigest()


@pytest.mark.parametrize("name", CLIENTS)
async def test_the_engine_gets_the_bytes_of_before(start: Starter, name: str) -> None:
    stack: Stack = await start(context_length=65536, engine_wait_seconds=0.0)
    assert await digest_of_traffic(stack, name) == BEFORE[name]
