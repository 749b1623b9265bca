"""The gateway before a real SGLang engine: 200 turns of concurrent clients, exact against a float32 forward."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry
from transformers import AutoModelForCausalLM, AutoTokenizer

from openclaw.config import RuntimeConfig
from openclaw.gateway.app import create_app
from openclaw.gateway.assemble import build_service
from openclaw.ledger.records import Turn
from openclaw.ledger.store import Ledger
from tests.helpers.live_engine import live_engine
from tests.helpers.mock_engine import serve

SESSIONS, TURNS, TOLERANCE = 20, 10, 1e-4
TOOLS: Any = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def engine_url(tiny_random_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with live_engine(tiny_random_model, tmp_path_factory.mktemp("run")) as engine:
        yield engine.url()


async def converse(client: AsyncOpenAI, number: int) -> None:
    """One session: every other turn streamed, a tool result now and then, two turns left in the middle."""
    messages: list[Any] = [{"role": "user", "content": f"Session {number}: what is {number} + 3?"}]
    options: dict[str, Any] = {
        "model": "any",
        "max_tokens": 40,
        "extra_headers": {"X-Session-Id": f"session-{number}"},
        "extra_body": {"chat_template_kwargs": {"enable_thinking": bool(number % 2)}},
    }
    if number % 3 == 0:
        options["tools"] = TOOLS
    for turn in range(TURNS):
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        if turn % 2:
            leaving = number == 0 and turn == 5
            long = {"max_tokens": 800} if leaving else {}
            stream = await client.chat.completions.create(messages=messages, stream=True, **options | long)
            read = 0
            async for chunk in stream:
                read += 1
                message["content"] += chunk.choices[0].delta.content or ""
                if leaving and read == 2:
                    await stream.close()
                    break
        else:
            reply = await client.chat.completions.create(messages=messages, **options)
            message = reply.choices[0].message.model_dump(exclude_none=True)
        messages = [messages[0], message, {"role": "user", "content": f"Turn {turn}: shorter, please."}]


def forward(model: Any, turn: Turn) -> list[float]:
    ids = torch.tensor([*turn.prompt_ids, *turn.response_ids])
    with torch.no_grad():
        logits = model(ids[None]).logits[0] / turn.temperature
    scores = torch.log_softmax(logits[:-1], dim=-1).gather(1, ids[1:, None])[:, 0]
    return scores[len(turn.prompt_ids) - 1 :].tolist()


async def test_two_hundred_turns_are_exact(engine_url: str, tiny_random_model: Path, tmp_path: Path) -> None:
    config = RuntimeConfig(
        policy_url=engine_url, tokenizer=str(tiny_random_model), context_length=2048, prm_max_new_tokens=512
    )
    ledger, registry = Ledger(tmp_path / "ledger.sqlite"), CollectorRegistry()
    service = build_service(config, AutoTokenizer.from_pretrained(tiny_random_model), ledger, registry)
    async with serve(create_app(service, registry)) as url:
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=120)
        await asyncio.gather(*(converse(client, number) for number in range(SESSIONS)))
    turns = [record.turn for record in ledger.export_turns()]
    assert len(turns) == SESSIONS * TURNS
    assert sum(turn.finish_reason == "abort" for turn in turns) == 1
    model = AutoModelForCausalLM.from_pretrained(tiny_random_model, dtype=torch.float32).eval()
    for turn in turns:
        assert turn.response_ids
        assert turn.response_logprobs == pytest.approx(forward(model, turn), abs=TOLERANCE)
        assert [(span.start, span.end) for span in turn.weight_versions] == [(0, len(turn.response_ids))]
    assert registry.get_sample_value("openclaw_refused_total") == 0
    assert registry.get_sample_value("openclaw_session_events_total", {"event": "next_state"}) is not None
    print(ledger.counts())
    ledger.close()
