"""The way of a request: from the web server's call of the gateway to the turn in the ledger."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from benchmarks.path_parts.recorder import Entry, Recorder
from chat_codec.renderer import Renderer
from lab.testkit.engine import mock_engine, serve
from lab.testkit.tiny_random import build_tokenizer
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import create_app
from openclaw.gateway.chat import ChatService
from openclaw.ledger.store import Ledger
from openclaw.privacy.redactor import build_redactor

PATIENCE = 60.0
REPLY = "The sum is five, because two and three make five."


class Watched:
    """An application whose second chat completion is recorded, from the server's call to its return."""

    def __init__(self, app: Any, recorder: Recorder) -> None:
        self._app = app
        self._recorder = recorder
        self.requests = 0
        self.done = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests += scope["type"] == "http"
        if scope["type"] != "http" or self.requests != 2:
            await self._app(scope, receive, send)
            return
        with self._recorder.recording():
            await self._app(scope, receive, send)
        self.done.set()


async def talk(recorder: Recorder, folder: Path) -> int:
    """Send two turns of one conversation, record the second, and return how many turns the ledger has."""
    tokenizer = build_tokenizer()
    reply = [*tokenizer.encode(REPLY, add_special_tokens=False), tokenizer.eos_token_id]
    async with mock_engine(lambda _: reply) as engine:
        config = RuntimeConfig(
            policy_url=engine.url,
            tokenizer="tiny-policy",
            ledger=str(folder / "ledger.sqlite"),
            context_length=2048,
            engine_wait_seconds=PATIENCE,
            keepalive_seconds=PATIENCE,
        )
        registry = CollectorRegistry()
        ledger = Ledger(config.ledger or "", redaction=build_redactor(config.redact, registry))
        recorder.install()
        service = ChatService(config, tokenizer, ledger, registry, renderer=Renderer(tokenizer))
        watched = Watched(create_app(service, registry), recorder)
        async with serve(watched) as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=PATIENCE) as client:
            messages = [{"role": "user", "content": "What is 2 + 3?"}]
            await say(client, messages)
            await say(
                client, [*messages, {"role": "assistant", "content": REPLY}, {"role": "user", "content": "Thanks."}]
            )
            await watched.done.wait()
        return len(list(Ledger(config.ledger or "").views.turn_records()))


async def say(client: httpx.AsyncClient, messages: list[dict[str, Any]]) -> None:
    """Send a turn as OpenClaw does, and read its streamed reply to the end."""
    body = {"model": "policy", "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
    headers = {"X-Session-Id": "conversation", "X-Turn-Type": "main"}
    async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
        lines = (await response.aread()).decode().split("\n")
    if response.status_code != 200 or "data: [DONE]" not in lines:
        raise RuntimeError(f"the gateway answered {response.status_code}: {lines[-3:]}")


def trace_request(folder: Path) -> list[Entry]:
    """Return the functions that one streamed main turn enters, after another one of the same session."""
    recorder = Recorder()
    try:
        turns = asyncio.run(talk(recorder, folder))
    finally:
        recorder.remove()
    if turns != 2:
        raise RuntimeError(f"the ledger has {turns} turns after 2 requests")
    return recorder.entries
