"""A whole gateway on a loopback port: stand-in engine, real tokenizer, real ledger, real SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry

from lab.testkit.engine import mock_engine, serve
from lab.testkit.tiny_random import build_tokenizer
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import create_app
from openclaw.gateway.chat import ChatService
from openclaw.ledger.records import Turn
from openclaw.ledger.store import Ledger
from slime.contract.engine import StandInEngine
from tests.helpers import quick_apps
from tests.helpers.conversations import World

quick_apps.install()

CONTEXT_LENGTH = 2048
PATIENCE = 60.0
"""Seconds for which no machine stands still: how long an engine may be away, and when a silent stream gets a comment."""


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return build_tokenizer()


@dataclass
class Stack:
    """A running gateway and what stands behind it."""

    engine: StandInEngine
    ledger: Ledger
    service: ChatService
    registry: CollectorRegistry
    tokenizer: Any
    url: str
    replies: list[list[int]]
    clock: list[float]

    @property
    def client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0)

    def say(self, *texts: str) -> None:
        """Let the engine answer the next requests with ``texts``."""
        end = self.tokenizer.eos_token_id
        self.replies.extend([*self.tokenizer.encode(text, add_special_tokens=False), end] for text in texts)

    def turns(self) -> list[Turn]:
        return [record.turn for record in self.ledger.views.turn_records()]

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


Starter = Callable[..., Any]


@pytest.fixture
async def start(tmp_path: Path, tokenizer: Any) -> AsyncIterator[Starter]:
    """A function that starts a gateway with changed configuration; all of them are stopped at the end."""
    async with AsyncExitStack() as stack:

        async def start_gateway(
            *,
            tokenizer: Any = tokenizer,
            engine_url: str | None = None,
            processor: Any = None,
            earlier: Any = None,
            **changes: Any,
        ) -> Stack:
            replies: list[list[int]] = []
            current: dict[str, list[int]] = {}

            def script(prompt: list[int]) -> Sequence[int]:
                attempt, _, completion = engine.requests[-1]["rid"].rpartition("chatcmpl-")
                if not attempt:
                    current[completion] = replies.pop(0)
                reply = current[completion]
                done = max((n for n in range(len(reply)) if prompt[-n:] == reply[:n]), default=0) if attempt else 0
                return reply[done:]

            engine = await stack.enter_async_context(mock_engine(script))
            config = RuntimeConfig(
                policy_url=engine_url or engine.url,
                tokenizer="tiny-policy",
                ledger=str(tmp_path / "ledger.sqlite"),
                context_length=CONTEXT_LENGTH,
                engine_wait_seconds=PATIENCE,
                keepalive_seconds=PATIENCE,
                prm_max_new_tokens=512,
            )
            config = replace(config, **changes)
            config.validate()
            clock = [1000.0]
            ledger = Ledger(config.ledger, clock=lambda: clock[0])
            stack.callback(ledger.close)  # FastAPI's caches keep an app, so nothing else closes its files
            registry = CollectorRegistry()
            service = ChatService(
                config, tokenizer, ledger, registry, processor=processor, clock=lambda: clock[0], earlier=earlier
            )
            url = await stack.enter_async_context(serve(create_app(service, registry)))
            return Stack(engine, ledger, service, registry, tokenizer, url, replies, clock)

        yield start_gateway


@pytest.fixture
async def stack(start: Starter) -> Stack:
    return await start()


@pytest.fixture
async def http(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        yield client


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path / "ledger.sqlite")
    yield world
    await world.close()
