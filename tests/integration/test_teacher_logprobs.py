"""Teacher log-probabilities by a real SGLang engine are those of a transformers float32 forward."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from lab.testkit.ledger_records import make_turn
from openclaw.exceptions import EngineRefusedError, EngineUnavailableError
from openclaw.judge.client import EngineHttp, JudgeClient, JudgeSampling, NamedTokenizer
from openclaw.judge.interface import Question
from openclaw.judge.teacher import TeacherScorer, score
from openclaw.messages.hints import append_hint
from openclaw.owners import LOCAL
from slime.backends.sglang_utils.engine import SGLangEngine
from tests.helpers.other_models import other_tokenizer
from tests.helpers.tolerance import MODEL, assert_near, tolerance

TEMPERATURE = 0.6
TOLERANCE = tolerance(10.0, roundings=MODEL)
HINT = "Write plain prose without bold."
MESSAGES = [{"role": "user", "content": "What is 2 + 3?"}]


@pytest.fixture(scope="module")
def url(engine: SGLangEngine) -> str:
    return engine.url()


@pytest.fixture(scope="module")
def reference(references: list[Any]) -> Any:
    return references[0]


@pytest.fixture(scope="module")
def tokenizer(tiny_random_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_random_model)


def forward(model: Any, prompt: Sequence[int], response: Sequence[int], temperature: float = 1.0) -> list[float]:
    ids = torch.tensor([*prompt, *response])
    with torch.no_grad():
        logits = model(ids[None]).logits[0] / temperature
    log_probs = torch.log_softmax(logits[:-1], dim=-1).gather(1, ids[1:, None])[:, 0]
    return log_probs[-len(response) :].tolist()


def assert_top_k(model: Any, topk: Any, prompt: Sequence[int], response: Sequence[int]) -> None:
    """The values are the model's largest, and each id has the value that is said of it."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1]
    table = torch.log_softmax(logits, -1)
    found, ids = torch.tensor(topk.log_probs), torch.tensor(topk.ids)
    assert found.shape == (len(response), 50)
    assert_near(found, table.topk(50).values, roundings=MODEL)
    assert_near(found, table.gather(-1, ids), roundings=MODEL)
    assert all(len(set(row)) == 50 for row in topk.ids)


async def sample(engine: EngineHttp, prompt: Sequence[int], length: int) -> tuple[list[float], list[int]]:
    """The log probabilities and ids of ``length`` tokens that the engine samples."""
    answer = await engine.generate(
        {
            "input_ids": list(prompt),
            "sampling_params": {"temperature": TEMPERATURE, "max_new_tokens": length, "ignore_eos": True},
            "return_logprob": True,
        }
    )
    entries = answer["meta_info"]["output_token_logprobs"]
    return [entry[0] for entry in entries], [entry[1] for entry in entries]


async def test_advantage_is_the_forwards_log_ratio(url: str, reference: Any, tokenizer: Any) -> None:
    def render(messages: Any, tools: Any, keywords: dict[str, Any]) -> list[int]:
        return tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=True, add_generation_prompt=True, return_dict=False, **keywords
        )

    engine = EngineHttp(url, timeout=60.0, concurrency=8)
    prompt, hinted = render(MESSAGES, None, {}), render(append_hint(MESSAGES, HINT), None, {})
    for length in (1, 2, 40):
        sampled, response = await sample(engine, prompt, length)
        while reference.config.vocab_size - 1 in response:  # SGLang scores it, and names it 0
            sampled, response = await sample(engine, prompt, length)
        assert sampled == pytest.approx(forward(reference, prompt, response, TEMPERATURE), abs=TOLERANCE)
        scores = await score(engine, prompt, response, topk=50, owner=LOCAL)
        assert scores.log_probs == pytest.approx(forward(reference, prompt, response), abs=TOLERANCE)
        assert_top_k(reference, scores.topk, prompt, response)
        turn = make_turn(
            messages=MESSAGES,
            prompt_ids=prompt,
            response_ids=response,
            response_logprobs=sampled,
            temperature=TEMPERATURE,
            weight_versions=[],
        )
        scorer = TeacherScorer(policy=engine, teacher=engine, render=render, concurrency=2)
        result = await scorer.score_turn(turn, append_hint(turn.messages, HINT))
        advantage = [teacher - old for teacher, old in zip(result.log_probs, sampled, strict=True)]
        ratio = zip(forward(reference, hinted, response), forward(reference, prompt, response), strict=True)
        assert advantage == pytest.approx([with_hint - without for with_hint, without in ratio], abs=TOLERANCE)
    with pytest.raises(EngineRefusedError, match="context length"):
        await score(engine, prompt * 300, response, owner=LOCAL)
    await engine.close()


async def test_an_engine_shows_which_tokenizer_it_has(url: str, tokenizer: Any) -> None:
    for named, right in ((tokenizer, True), (other_tokenizer(), False)):
        teacher = NamedTokenizer(EngineHttp(url, timeout=60.0, concurrency=2), named, "OPENCLAW_TEACHER_TOKENIZER=x")
        with nullcontext() if right else pytest.raises(EngineUnavailableError, match="has another tokenizer than"):
            found = await score(teacher, [5, 6], [7, 8], owner=LOCAL)
            assert len(found.log_probs) == 2
        await teacher.close()


async def test_judge_is_asked_as_often_as_told(url: str, tokenizer: Any) -> None:
    engine = EngineHttp(url, timeout=60.0, concurrency=8)
    judge = JudgeClient(engine, tokenizer, "full", JudgeSampling(max_new_tokens=8))
    votes = await judge.votes("prm", Question("It is five.", (("user", "Thanks!"),)), 3)
    assert [vote.judge for vote in votes] == ["prm"] * 3
    assert all(vote.answer for vote in votes)
    await engine.close()
