"""Hybrid's numbers by a real SGLang engine are those of a transformers float32 forward, at a temperature other than 1."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry
from transformers import AutoTokenizer

from chat_codec.renderer import Renderer
from lab.testkit.engine import serve
from lab.testkit.trainer import trainer_args
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import create_app
from openclaw.gateway.chat import ChatService
from openclaw.judge.client import EngineHttp
from openclaw.judge.teacher import TOLERANCE as SETTLED
from openclaw.judge.teacher import SupportScorer, score
from openclaw.ledger.records import Turn
from openclaw.ledger.store import Ledger
from openclaw.messages.hints import append_hint
from openclaw.owners import LOCAL
from slime.algorithms.losses.hybrid_distillation import support_surrogate
from slime.backends.sglang_utils.engine import SGLangEngine
from tests.helpers.tolerance import MODEL, assert_near, tolerance

K, ROWS, TEMPERATURE = 4, 64, 0.6
TOLERANCE = tolerance(10.0, roundings=MODEL)
HINTS = ("Write plain prose without bold.", "Answer in one short sentence.", "No lists.")


@pytest.fixture(scope="module")
def tokenizer(tiny_random_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_random_model)


@pytest.fixture
async def turns(
    engine: SGLangEngine, references: list[Any], tiny_random_model: Path, tokenizer: Any, tmp_path: Path
) -> AsyncIterator[list[Turn]]:
    """Three turns of a gateway that keeps the policy's top K; none has the last id, which SGLang names 0 when it scores."""
    config = RuntimeConfig(
        policy_url=engine.url(), tokenizer=str(tiny_random_model), context_length=2048, prm_max_new_tokens=512
    )
    ledger, registry = Ledger(tmp_path / "ledger.sqlite"), CollectorRegistry()
    service = ChatService(config, tokenizer, ledger, registry, topk=K)
    async with serve(create_app(service, registry)) as url:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=120) as client:
            for number in range(12):
                messages: Any = [{"role": "user", "content": f"What is {number} + 3?"}]
                await client.chat.completions.create(model="any", messages=messages, max_tokens=24)
    found = [record.turn for record in ledger.views.turn_records()]
    yield [turn for turn in found if references[0].config.vocab_size - 1 not in turn.response_ids][:3]
    ledger.close()


def table(model: Any, prompt: Sequence[int], response: Sequence[int], temperature: float) -> torch.Tensor:
    """Log probabilities ``[R, V]`` of a forward."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.double() / temperature, -1)


async def test_the_captured_tokens_are_the_engines_likeliest(
    engine: SGLangEngine, references: list[Any], turns: list[Turn]
) -> None:
    http = EngineHttp(engine.url(), timeout=60.0, concurrency=4)
    assert len(turns) == 3
    for turn in turns:
        assert turn.temperature == TEMPERATURE
        assert turn.response_topk is not None
        turn.validate()
        exact = table(references[0], turn.prompt_ids, turn.response_ids, TEMPERATURE)
        found, ids = torch.tensor(turn.response_topk.log_probs), torch.tensor(turn.response_topk.ids)
        assert_near(found, exact.topk(K).values, roundings=MODEL, magnitude=10.0)
        assert_near(found, exact.gather(-1, ids), roundings=MODEL, magnitude=10.0)
        again = (await score(http, turn.prompt_ids, turn.response_ids, topk=K, owner=LOCAL)).topk
        assert again is not None
        at_one = table(references[0], turn.prompt_ids, turn.response_ids, 1.0)
        assert_near(at_one.gather(-1, ids), torch.tensor(again.log_probs), roundings=MODEL, magnitude=10.0)
        likeliest = at_one.topk(K + 1).values
        clear = (likeliest[:, :-1] - likeliest[:, 1:]).min(-1).values > 2 * TOLERANCE
        pairs = zip(clear.tolist(), turn.response_topk.ids, again.ids, strict=True)
        assert all(captured == scored for apart, captured, scored in pairs if apart)
        for position, (token, value) in enumerate(zip(turn.response_ids, turn.response_logprobs, strict=True)):
            if token in turn.response_topk.ids[position]:
                place = turn.response_topk.ids[position].index(token)
                assert turn.response_topk.log_probs[position][place] == value, "the sampled token has one number"
    await http.close()


async def test_the_teacher_is_at_the_policys_temperature(
    engine: SGLangEngine, references: list[Any], turns: list[Turn], tokenizer: Any
) -> None:
    """Finding B2: with the teacher at temperature 1 and the student at 0.6, equal models had an advantage."""
    http, render = EngineHttp(engine.url(), timeout=60.0, concurrency=4), Renderer(tokenizer)
    scorer = SupportScorer(teacher=http, render=render.render, choice="token_optimal", rows=ROWS, concurrency=2)
    for turn in turns:
        assert turn.response_topk is not None
        same = await scorer.score_turn(turn, [turn.messages])
        old, teacher = torch.tensor(turn.response_topk.log_probs), torch.tensor(same.topk.log_probs)
        assert same.topk.ids == turn.response_topk.ids
        assert float((teacher - old).abs().max()) <= SETTLED + TOLERANCE
        losses, _ = support_surrogate(trainer_args(""), old, old, teacher)
        assert float(losses.abs().max()) <= SETTLED + TOLERANCE
        contexts = [append_hint(turn.messages, hint) for hint in HINTS]
        taught = await scorer.score_turn(turn, contexts)
        exact = [
            table(references[0], render.render(messages, None, {}), turn.response_ids, TEMPERATURE)
            for messages in contexts
        ]
        for position, ids in enumerate(turn.response_topk.ids):
            found = torch.tensor(taught.topk.log_probs[position]).double()
            nearest = min(float((found - each[position][ids]).abs().max()) for each in exact)
            assert nearest <= SETTLED + TOLERANCE
        print(f"{len(turn.response_ids)} tokens, {taught.asked} alone, overlap {taught.overlap:.2f}")
    render.close()
    await http.close()
