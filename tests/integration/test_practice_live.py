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
from openclaw.judge.client import BaseModel, EngineHttp
from openclaw.judge.measure import Rubric
from openclaw.ledger.practice import REPLAYED, Round
from openclaw.ledger.records import TopK, Turn, Verdict
from openclaw.ledger.store import Ledger
from openclaw.messages.hints import append_hint
from openclaw.owners import LOCAL
from openclaw.practice.loop import PracticeLoop, PracticeMetrics, PracticeSettings
from openclaw.practice.plan import LESSONED_REPLIES, REPLIES, RUBRIC_RATE, emphasised
from openclaw.training.samples import make_sample
from slime.args import Arguments
from slime.backends.sglang_utils.engine import SGLangEngine
from slime.utils.types import Sample
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


def stored(ledger: Ledger, renderer: Renderer, number: int, **changes: Any) -> Turn:
    """Record a turn that waits for its verdict, and return it."""
    messages = [{"role": "user", "content": f"What is {number} + 3?"}]
    turn = make_turn(f"turn-{number}", messages=messages, prompt_ids=renderer.render(messages), **changes)
    ledger.turns.record(turn)
    ledger.turns.record_next_state(turn.id, USER_NEXT, 102.0)
    return turn


async def practised(
    ledger: Ledger, client: EngineHttp, renderer: Renderer, **options: Any
) -> tuple[Round, list[Sample]]:
    """Practise a round, and return it with its samples."""
    rubric, replay = options.get("rubric"), options.get("replay", 0)
    temperature = options.get("temperature", TEMPERATURE)
    settings = PracticeSettings("trial", 6, 4000, 3, TOPK, temperature, 24, 512, "auto", "m", replay)
    metrics = PracticeMetrics(CollectorRegistry())
    loop = PracticeLoop(ledger, client, renderer.render, len, settings, metrics, rubric=rubric)
    due = loop.due(LOCAL)
    assert due is not None
    await loop.practise(due)
    [done] = ledger.practices.rounds(LOCAL, due.series)
    return done, ledger.samples.claim(9, 99, origin="practice")


def parts(sample: Sample) -> tuple[list[int], list[int]]:
    """Return the ids of a sample's prompt and of its reply."""
    return sample.tokens[: -sample.response_length], sample.tokens[-sample.response_length :]


def served(args: Arguments, engine: SGLangEngine, base: Any, version: str) -> Any:
    """Give the engine an adapter of the base model, and return the base with it."""
    adapter = adapters(base, args.lora_target_modules, 1)
    with rank_zero(), connected(args, [local_handle(engine)]) as sync:
        sync.push(iter(adapter.items()), version)
    return merged(base, adapter)


async def test_a_round_on_an_engine_with_adapters(
    args: Arguments, engine: SGLangEngine, references: list[Any], tiny_random_model: Path, tmp_path: Path
) -> None:
    policy = served(args, engine, references[0], "7")
    renderer = Renderer(AutoTokenizer.from_pretrained(tiny_random_model))
    client = EngineHttp(engine.url(), timeout=WAIT_SECONDS, concurrency=8)
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        ledger.lessons.add(LOCAL, LESSON)
        for number in range(3):
            record_judged(ledger, stored(ledger, renderer, number).id, Verdict(), [], "score_zero")
        done, samples = await practised(ledger, client, renderer)
    await client.close()
    assert (done.outcome, len(samples)) == ("drawn", 2 * (REPLIES + LESSONED_REPLIES))
    assert done.kl is not None
    assert done.kl > 0
    lessoned = 0
    for sample in samples:
        prompt, reply = parts(sample)
        assert sample.weight_versions == ["7"]
        own = log_probs(policy, prompt, reply, TEMPERATURE).gather(-1, torch.tensor(reply)[:, None])[:, 0]
        assert float((own - torch.tensor(sample.rollout_log_probs)).abs().max()) < FLOAT32.worst
        with_lesson = renderer.render(append_hint(sample.prompt, LESSON))
        ids = sample.teacher_topk_indices
        assert ids is not None
        expected = log_probs(references[0], with_lesson, reply, 1.0).gather(-1, torch.tensor(ids))
        if prompt == with_lesson:
            lessoned += 1
        else:
            plain = log_probs(references[0], prompt, reply, 1.0).topk(TOPK)
            likeliest = TopK(expected.tolist(), ids), TopK(plain.values.tolist(), plain.indices.tolist())
            expected = torch.tensor(emphasised(*likeliest).log_probs)
        assert tuple(expected.shape) == (len(reply), TOPK)
        assert float((expected - torch.tensor(sample.teacher_topk_log_probs)).abs().max()) < 2 * FLOAT32.worst
    assert lessoned == 2 * LESSONED_REPLIES


async def test_replay_and_groups_on_an_engine_with_adapters(
    args: Arguments, engine: SGLangEngine, references: list[Any], tiny_random_model: Path, tmp_path: Path
) -> None:
    policy = served(args, engine, references[0], "8")
    renderer = Renderer(AutoTokenizer.from_pretrained(tiny_random_model))
    client = EngineHttp(engine.url(), timeout=WAIT_SECONDS, concurrency=8)
    reply = [5, 6, 7]
    prompts = [renderer.render([{"role": "user", "content": f"What is {number} + 3?"}]) for number in range(2)]
    now = [log_probs(policy, prompt, reply, 1.0).gather(-1, torch.tensor(reply)[:, None])[:, 0] for prompt in prompts]
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        ledger.lessons.add(LOCAL, LESSON)
        for number, away in enumerate((0.5, 1.5)):  # nats per token from the present weights
            turn = stored(ledger, renderer, number, response_ids=reply, response_logprobs=(now[number] - away).tolist())
            record_judged(ledger, turn.id, Verdict(score=-1), [make_sample(turn, -1.0, score=-1)], None)
        assert len(ledger.samples.claim(0, 99)) == 2
        ledger.samples.record_step(0, "8", 103.0, 103.0)
        rubric = Rubric(BaseModel(client))
        _, samples = await practised(ledger, client, renderer, rubric=rubric, replay=14, temperature=1.0)
    await client.close()
    rewarded = [sample for sample in samples if sample.teacher_topk_indices is None]
    replayed = [sample for sample in rewarded if sample.metadata.get(REPLAYED)]
    assert [(sample.metadata["turn_id"], sample.reward) for sample in replayed] == [("turn-0", -1.0)]
    group = [sample for sample in rewarded if sample not in replayed]
    obeyed = []
    for sample in (each for each in samples if each.teacher_topk_indices is not None):
        prompt, ids = parts(sample)
        with_lesson = renderer.render(append_hint(sample.prompt, LESSON))
        if prompt != with_lesson:
            under, without = (
                log_probs(references[0], each, ids, 1.0).gather(-1, torch.tensor(ids)[:, None]).mean()
                for each in (with_lesson, prompt)
            )
            obeyed.append(float(under - without) > 0)
    mean = sum(obeyed) / len(obeyed)
    expected = [RUBRIC_RATE * (each - mean) for each in obeyed] if 0 < mean < 1 else []
    assert [sample.reward for sample in group] == pytest.approx(expected)
