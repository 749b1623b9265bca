"""The gateway before a real engine, in the test's own process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry
from transformers import AutoTokenizer

from lab.testkit.engine import serve
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import create_app
from openclaw.gateway.chat import ChatService
from openclaw.ledger.store import Ledger


@asynccontextmanager
async def gateway(
    engine_url: str, model: Path, folder: Path, **changes: Any
) -> AsyncIterator[tuple[AsyncOpenAI, Ledger, CollectorRegistry]]:
    """Serve a gateway before the engine; yield a client of it, its ledger in ``folder``, and its metrics."""
    config = RuntimeConfig(
        policy_url=engine_url, tokenizer=str(model), context_length=2048, prm_max_new_tokens=512, **changes
    )
    ledger, registry = Ledger(folder / "ledger.sqlite"), CollectorRegistry()
    service = ChatService(config, AutoTokenizer.from_pretrained(model), ledger, registry)
    async with serve(create_app(service, registry)) as url:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=120) as client:
            yield client, ledger, registry
