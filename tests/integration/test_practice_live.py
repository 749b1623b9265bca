"""Practice on a real engine with adapters: the weights answer, and the base model that reads the lesson scores their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry
from transformers import AutoTokenizer

from benchmarks.weight_receiver import local_handle
from chat_codec.renderer import Renderer
from lab.testkit.ledger_records import USER_NEXT, make_turn
from lab.testkit.live_engine import engine_arguments, live_engine
from openclaw.credit.baseline import record_judged
from openclaw.judge.client import EngineHttp
from openclaw.ledger.records import Verdict
from openclaw.ledger.store import Ledger
from openclaw.messages.hints import append_hint
from openclaw.owners import LOCAL
from openclaw.practice.loop import PracticeLoop, PracticeMetrics, PracticeSettings
from slime.args import Arguments
from slime.backends.sglang_utils.engine import SGLangEngine
from tests.helpers.adapter_checks import adapters, merged, with_lora
from tests.helpers.engine_streams import FLOAT32, TEMPERATURE, WAIT_SECONDS
from tests.helpers.weight_receivers import connected, rank_zero

TOPK, LESSON = 20, "Keep answers short."


@pytest.fixture(scope="module")
def args(tiny_random_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Arguments:
    return with_lora(engine_arguments(tiny_random_model, tmp_path_factory.mktemp("practice-engine")))


@pytest.fixture(scope="module")
def engine(args: Arguments) -> Iterator[SGLangEngine]:
    with live_engine(args) as engine:
        yield engine


def log_probs(model: Any, prompt: list[int], reply: list[int], temperature: float) -> torch.Tensor:
    """Return the log probabilities at each token of a reply, ``[R, V]``, from a forward pass."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + reply])).logits[0].float()
    return (logits[len(prompt) - 1 : -1] / temperature).log_softmax(-1)


async def test_a_round_on_an_engine_with_adapters(
    args: Arguments, engine: SGLangEngine, references: list[Any], tiny_random_model: Path, tmp_path: Path
) -> None:
    adapter = adapters(references[0], args.lora_target_modules, 1)
    with rank_zero(), connected(args, [local_handle(engine)]) as sync:
        sync.push(iter(adapter.items()), "7")
    renderer = Renderer(AutoTokenizer.from_pretrained(tiny_random_model))
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        ledger.lessons.add(LOCAL, LESSON)
        for number in range(3):
            messages = [{"role": "user", "content": f"What is {number} + 3?"}]
            turn = make_turn(f"turn-{number}", messages=messages, prompt_ids=renderer.render(messages))
            ledger.turns.record(turn)
            ledger.turns.record_next_state(turn.id, USER_NEXT, 102.0)
            record_judged(ledger, turn.id, Verdict(), [], "score_zero")
        settings = PracticeSettings("trial", 6, 4000, 3, TOPK, TEMPERATURE, 24, 512, "auto", "m")
        client = EngineHttp(engine.url(), timeout=WAIT_SECONDS, concurrency=8)
        loop = PracticeLoop(ledger, client, renderer.render, len, settings, PracticeMetrics(CollectorRegistry()))
        due = loop.due(LOCAL)
        assert due is not None
        await loop.practise(due)
        await client.close()
        [done] = ledger.practices.rounds(LOCAL, due.series)
        samples = ledger.samples.claim(0, 99, origin="practice")
    assert (done.outcome, len(samples)) == ("drawn", 8)
    assert done.kl is not None
    assert done.kl > 0
    policy = merged(references[0], adapter)
    for sample in samples:
        prompt, reply = sample.tokens[: -sample.response_length], sample.tokens[-sample.response_length :]
        assert sample.weight_versions == ["7"]
        own = log_probs(policy, prompt, reply, TEMPERATURE).gather(-1, torch.tensor(reply)[:, None])[:, 0]
        assert float((own - torch.tensor(sample.rollout_log_probs)).abs().max()) < FLOAT32.worst
        taught = log_probs(references[0], renderer.render(append_hint(sample.prompt, LESSON)), reply, 1.0)
        found, ids = torch.tensor(sample.teacher_topk_log_probs), torch.tensor(sample.teacher_topk_indices)
        assert ids.shape == (len(reply), TOPK)
        assert float((taught.gather(-1, ids) - found).abs().max()) < FLOAT32.worst
