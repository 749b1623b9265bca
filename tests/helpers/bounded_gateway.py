"""A gateway behind its bounded connections in a process of its own: ``python -m tests.helpers.bounded_gateway``.

It prints its port once it serves, and ends with its standard input. The engine is a stand-in with one reply.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import uvloop
from prometheus_client import CollectorRegistry

from lab.testkit.engine import mock_engine
from lab.testkit.tiny_random import build_tokenizer
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import create_app
from openclaw.gateway.chat import ChatService
from openclaw.ledger.store import Ledger
from openclaw.runtime.serve import GatewayServer


async def main(folder: Path) -> None:
    """Serve until standard input ends."""
    tokenizer = build_tokenizer()
    reply = [*tokenizer.encode("Hi.", add_special_tokens=False), tokenizer.eos_token_id]
    async with mock_engine(lambda _: reply) as engine:
        config = RuntimeConfig(
            policy_url=engine.url, tokenizer="tiny", context_length=2048, prm_max_new_tokens=99, port=0, grace_seconds=1
        )
        config.validate()
        registry = CollectorRegistry()
        ledger = Ledger(folder / "ledger.sqlite")
        service = ChatService(config, tokenizer, ledger, registry)
        server = GatewayServer(create_app(service, registry), config, service.metrics)
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        serving = asyncio.create_task(server.serve())
        while not (server.started and server.servers):
            await asyncio.sleep(0.01)
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)
        await ended
        server.should_exit = True
        await serving
        ledger.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        uvloop.run(main(Path(temporary)))
