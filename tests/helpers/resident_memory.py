"""How much memory a gateway keeps after large requests: ``python -m tests.helpers.resident_memory 50``.

Serves the real gateway before a stand-in engine in this process, sends it that many bodies of 30 MB in several shapes, and
prints a JSON object: ``before`` and ``after`` in bytes, ``statuses``, and ``silent``, the longest time in seconds without
an answer from ``/healthz``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psutil
from prometheus_client import CollectorRegistry

from lab.testkit.engine import mock_engine, serve
from lab.testkit.tiny_random import build_tokenizer
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import create_app
from openclaw.gateway.chat import ChatService
from openclaw.ledger.store import Ledger

BODY_BYTES = 30 << 20
PIECE = 1 << 16
JSON = {"content-type": "application/json"}
SMALL = b'{"messages": [{"role": "user", "content": "hi"}]}'
SHAPES: dict[str, tuple[bytes, bytes, bytes]] = {
    "prompt": (b'{"messages": [{"role": "user", "content": "', b"word and ", b'"}]}'),
    "unknown": (b'{"messages": [{"role": "user", "content": "x", "junk": "', b"junk", b'"}]}'),
    "refused": (b'{"messages": [{"role": "user", "content": "x"}], "nonsense": "', b"junk", b'"}'),
    "lists": (b'{"messages": [{"role": "user", "content": "x", "junk": [', b"[1],", b"[]]}]}"),
}


async def body(shape: str) -> AsyncIterator[bytes]:
    begin, middle, end = SHAPES[shape]
    yield begin
    piece = middle * (PIECE // len(middle))
    for _ in range((BODY_BYTES - len(begin) - len(end)) // len(piece)):
        yield piece
    yield end


async def measure(count: int) -> dict[str, object]:
    tokenizer = build_tokenizer()
    reply = [*tokenizer.encode("ok", add_special_tokens=False), tokenizer.eos_token_id]
    silent, statuses = 0.0, []
    with tempfile.TemporaryDirectory() as folder:
        async with mock_engine(lambda prompt: reply) as engine:
            config = RuntimeConfig(policy_url=engine.url, tokenizer="tiny", context_length=2048)
            ledger = Ledger(Path(folder) / "ledger.sqlite")
            service = ChatService(config, tokenizer, ledger, CollectorRegistry())
            async with (
                serve(create_app(service, CollectorRegistry())) as url,
                httpx.AsyncClient(base_url=url, trust_env=False, timeout=600) as client,
            ):

                async def watch() -> None:
                    nonlocal silent
                    while True:
                        began = time.perf_counter()
                        await client.get("/healthz")
                        silent = max(silent, time.perf_counter() - began)
                        await asyncio.sleep(0.01)

                async def send(content: AsyncIterator[bytes] | bytes) -> int:
                    return (await client.post("/v1/chat/completions", content=content, headers=JSON)).status_code

                await send(SMALL)
                await send(body("refused"))
                before = psutil.Process().memory_info().rss
                watching = asyncio.create_task(watch())
                for number in range(count):
                    statuses.append(await send(body(list(SHAPES)[number % len(SHAPES)])))
                watching.cancel()
                after = psutil.Process().memory_info().rss
            ledger.close()
    return {"before": before, "after": after, "statuses": statuses, "silent": silent}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(int(sys.argv[1])))))
