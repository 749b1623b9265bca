"""A gateway for commands and programs that ask one: a real app and ledger over a stand-in engine, served from a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client import CollectorRegistry

from lab.testkit.engine import mock_engine, serve
from lab.testkit.tiny_random import build_tokenizer
from openclaw.config.runtime import RuntimeConfig
from openclaw.config.runtime_variables import GateVariables
from openclaw.gate.certificate import Facts, certify
from openclaw.gateway.app import create_app
from openclaw.gateway.chat import ChatService
from openclaw.ledger.store import Ledger
from openclaw.runtime.window import WindowProcess

MODEL = Path(__file__).resolve().parents[1] / "tiny_models" / "shipped"
"""The folder that it names as the model behind its turns."""
REPLY = "Hello you."
SECONDS = 60
LEDGER = "served.sqlite"
ADDRESSES = ("127.0.0.1:30000", "127.0.0.1:8000")
"""Where the gateways of pages listen; a command reaches this one instead."""
CHAT = "openclaw-rl chat"
"""Talks to the first of them unless it is told otherwise."""
REPLY_ID = "chatcmpl-..."
"""Where a page leaves out the id of a reply."""
CERTIFICATE = certify(Facts(loss_tokens=9.0), GateVariables()).to_dict()
"""Of the update that its weights are from."""
EPISODE_ID = "episode-..."
"""Where a page leaves out the id of an episode."""


@dataclass(frozen=True)
class Gateway:
    """Address of a running gateway, the id of a reply that it gave, and that of an open episode."""

    url: str
    reply_id: str
    episode_id: str

    def addressed(self, text: str) -> str:
        """Return a command or program that asks this gateway, about its reply or episode."""
        for address in ADDRESSES:
            text = text.replace(address, self.url.removeprefix("http://"))
        if "--base-url" not in text:
            text = text.replace(CHAT, f"{CHAT} --base-url {self.url}/v1")
        return text.replace(REPLY_ID, self.reply_id).replace(EPISODE_ID, self.episode_id)


@contextmanager
def running_gateway(folder: Path) -> Iterator[Gateway]:
    """Serve a gateway whose ledger is in ``folder`` until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gateway of the pages")
    thread.start()
    exits = AsyncExitStack()
    ledger = Ledger(folder / LEDGER)
    ledger.decisions.record(0, "step", "1", "it may serve", certificate=CERTIFICATE)
    try:
        url = asyncio.run_coroutine_threadsafe(_serve(exits, folder, ledger), loop).result(SECONDS)
        question = {"model": "any", "messages": [{"role": "user", "content": "Hello?"}]}
        reply = httpx.post(f"{url}/v1/chat/completions", json=question, trust_env=False, timeout=SECONDS)
        episode = httpx.post(f"{url}/v1/episodes", json={"task": "any", "ttl_s": 600}, trust_env=False, timeout=SECONDS)
        yield Gateway(url, reply.json()["id"], episode.json()["id"])
    finally:
        asyncio.run_coroutine_threadsafe(exits.aclose(), loop).result(SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        ledger.close()


async def _serve(exits: AsyncExitStack, folder: Path, ledger: Ledger) -> str:
    tokenizer = build_tokenizer()
    reply = [*tokenizer.encode(REPLY, add_special_tokens=False), tokenizer.eos_token_id]
    engine = await exits.enter_async_context(mock_engine(lambda _: reply))
    config = RuntimeConfig(
        policy_url=engine.url,
        tokenizer=str(MODEL),
        ledger=str(folder / LEDGER),
        context_length=32768,
        serve_rollouts=True,
    )
    config.validate()
    registry = CollectorRegistry()
    service = ChatService(config, tokenizer, ledger, registry)
    return await exits.enter_async_context(serve(create_app(service, registry, views=WindowProcess(config))))
