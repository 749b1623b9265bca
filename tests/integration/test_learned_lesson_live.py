"""A lesson on a real engine with adapters: it rests once pushed weights satisfy it, and comes back when later ones do not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry
from simulated_users.reading import find_user
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from word_problems.problems import heldout

from benchmarks.weight_receiver import local_handle
from chat_codec.renderer import Renderer
from lab.testkit.ledger_records import USER_NEXT, make_turn
from lab.testkit.live_engine import engine_arguments, live_engine
from lab.tiny_models.build import ensure_built
from lab.tiny_models.sampling import TEMPERATURE, Sampler
from openclaw.credit.baseline import record_judged
from openclaw.judge.client import BaseModel, EngineHttp
from openclaw.judge.measure import PROMPTS, LessonMeter, Rubric
from openclaw.judge.voting import JudgeMetrics
from openclaw.ledger.records import Verdict
from openclaw.ledger.store import Ledger
from openclaw.lessons.lesson import Lesson
from openclaw.messages.hints import append_hint
from openclaw.owners import LOCAL
from slime.args import Arguments
from slime.backends.sglang_utils.engine import SGLangEngine
from tests.helpers.adapter_checks import ALPHA, RANK, adapters, with_lora
from tests.helpers.engine_streams import WAIT_SECONDS
from tests.helpers.weight_receivers import connected, rank_zero

LESSON = "Can you write it again like a normal person?"
STEPS, BATCH, RATE = 16, 8, 1e-2
TRAINED, ASKED = 64, 48
MEASURES = 4
"""Updates with the same weights; one in five measurements of weights that have learned a lesson leaves it as it is."""
MAX_REPLY = 140


@pytest.fixture(scope="module")
def args(tmp_path_factory: pytest.TempPathFactory) -> Arguments:
    return with_lora(engine_arguments(ensure_built(0), tmp_path_factory.mktemp("lesson-engine")))


@pytest.fixture(scope="module")
def engine(args: Arguments) -> Iterator[SGLangEngine]:
    with live_engine(args) as engine:
        yield engine


def questions(count: int, seed: int) -> list[list[dict[str, Any]]]:
    return [[{"role": "user", "content": problem.question}] for problem in heldout(count, seed)]


def distilled(model: Any, sampler: Sampler, targets: list[str]) -> dict[str, Tensor]:
    """Return adapters with which the model replies as it does with the lesson, from replies that the student likes."""
    asked, student = questions(TRAINED, 1), find_user("student")
    plain = [sampler.prompt(messages) for messages in asked]
    replies = sampler.replies([sampler.prompt(append_hint(messages, LESSON)) for messages in asked])
    pairs = [
        (prompt, reply) for prompt, reply in zip(plain, replies, strict=True) if student.likes(sampler.text(reply))
    ]
    adapter = adapters(model, targets, 1)
    for name, value in adapter.items():
        adapter[name] = (value if "lora_A" in name else torch.zeros_like(value)).requires_grad_()
    hooks = []
    for name, module in model.named_modules():
        if (place := f"base_model.model.{name}.lora_A.weight") in adapter:
            sides = adapter[place], adapter[place.replace("lora_A", "lora_B")]
            hooks.append(
                module.register_forward_hook(lambda _, inputs, out, sides=sides: out + added(inputs[0], *sides))
            )
    optimizer, rng = torch.optim.Adam(list(adapter.values()), lr=RATE), random.Random(1)
    for _ in range(STEPS):
        loss = torch.stack([nats(model, *pair) for pair in rng.sample(pairs, BATCH)]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for hook in hooks:
        hook.remove()
    return {name: value.detach() for name, value in adapter.items()}


def added(inputs: Tensor, lora_a: Tensor, lora_b: Tensor) -> Tensor:
    return ALPHA / RANK * inputs @ lora_a.T @ lora_b.T


def nats(model: Any, prompt: list[int], reply: list[int]) -> Tensor:
    """Return the mean negative log probability of a reply's tokens."""
    logits = model(torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 : -1]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(reply))


async def share_liked(client: EngineHttp, sampler: Sampler, prompts: Sequence[list[int]]) -> float:
    """Return the share of the weights' replies that the student likes."""
    sampling = {"temperature": TEMPERATURE, "max_new_tokens": MAX_REPLY}
    answers = await asyncio.gather(
        *(client.generate({"input_ids": prompt, "sampling_params": sampling}) for prompt in prompts)
    )
    student = find_user("student")
    return sum(student.likes(sampler.text(answer["output_ids"])) for answer in answers) / len(prompts)


def liked_lesson(ledger: Ledger, renderer: Renderer) -> Lesson:
    """Record as many turns as are measured, one of them under the lesson, with a like."""
    lesson = ledger.lessons.add(LOCAL, LESSON)
    for number, messages in enumerate(questions(PROMPTS, 2)):
        read = ((lesson.id, lesson.text),) if number == 0 else ()
        turn = make_turn(f"turn-{number}", messages=messages, prompt_ids=renderer.render(messages), lessons=read)
        ledger.turns.record(turn)
    ledger.turns.record_next_state("turn-0", USER_NEXT, 102.0)
    with ledger.transaction() as connection:
        record_judged(ledger, "turn-0", Verdict(score=1), [], "under_lesson")
        ledger.lessons.settle(connection, "turn-0", LOCAL, None)
    return lesson


async def test_a_lesson_rests_with_the_weights_that_learned_it(
    args: Arguments, engine: SGLangEngine, tmp_path: Path
) -> None:
    path = ensure_built(0)
    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval().requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(path)
    sampler, renderer = Sampler(model, tokenizer, 1), Renderer(tokenizer)
    learned = distilled(model, sampler, args.lora_target_modules)
    unlearned = {name: torch.zeros_like(value) for name, value in learned.items()}
    client = EngineHttp(engine.url(), timeout=WAIT_SECONDS, concurrency=8)
    with (
        closing(Ledger(tmp_path / "ledger.sqlite")) as ledger,
        rank_zero(),
        connected(args, [local_handle(engine)]) as sync,
    ):
        lesson = liked_lesson(ledger, renderer)
        moved: list[str] = []
        meter = LessonMeter(
            *(ledger, client, BaseModel(client), renderer.render, JudgeMetrics(CollectorRegistry())),
            temperature=TEMPERATURE,
            default="auto",
            rubric=Rubric(BaseModel(client)),
            on_moved=moved.append,
        )
        versions = iter(range(1, 100))

        async def until(adapter: dict[str, Tensor], state: str) -> Lesson:
            """Push an adapter and measure, up to `MEASURES` times, and return the lesson in this state."""
            for _ in range(MEASURES):
                version, at = next(versions), ledger.database.clock()
                sync.push(iter(adapter.items()), str(version))
                ledger.samples.record_step(version - 1, str(version), at, at)
                await meter.step()
                found = ledger.lessons.get(LOCAL, lesson.id)
                assert found.measure is not None
                assert found.measure.weight_version == str(version)
                if found.state == state:
                    return found
            raise AssertionError(f"the lesson is {found}")

        await meter.step()
        assert ledger.lessons.get(LOCAL, lesson.id).measure is None, "no update has served"
        rests = await until(learned, "resting")
        assert (rests.reason, moved) == ("learned", [LOCAL])
        plain, taught = (
            [renderer.render(append_hint(messages, LESSON) if hinted else messages) for messages in questions(ASKED, 3)]
            for hinted in (False, True)
        )
        without, under = await share_liked(client, sampler, plain), await share_liked(client, sampler, taught)
        back = await until(unlearned, "active")
        assert (back.reason, moved) == (None, [LOCAL, LOCAL])
        base = await share_liked(client, sampler, plain)
        await client.close()
    assert without >= under - 0.1, "the lesson rests too early"
    assert base <= without - 0.3, "these questions do not show the lesson"
