"""A live run on a model that sees: pictures through the OpenAI SDK, exact log probabilities, and a step on them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import AsyncOpenAI
from PIL import Image
from transformers import Qwen3VLForConditionalGeneration

from groundwork.images import picture_tensors
from groundwork.processors import encode_image_for_rollout_engine, load_processor
from lab.testkit.live_run import LiveRun, wait_until
from lab.testkit.logged import logged_records
from openclaw.ledger.records import SeenPicture, Turn
from openclaw.ledger.store import Ledger
from tests.helpers import tiny_vision
from tests.helpers.pictures import picture

pytestmark = pytest.mark.integration
BOUND = 1e-3
APART = "train/train_rollout_logprob_diff_max"
SESSIONS, BATCH = 3, 4
TYPED = "<|vision_start|><|image_pad|><|vision_end|>"
SIZES = [(24, 16), (33, 25), (16, 16)]


def shown(size: tuple[int, int], text: str) -> dict[str, Any]:
    url = encode_image_for_rollout_engine(picture(*size))
    return {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}],
    }


async def talk(client: AsyncOpenAI, number: int) -> None:
    """Have one conversation of three turns: a picture each in two, words that spell a placeholder in one, one streamed."""
    request: Any = {"model": "any", "max_tokens": 12, "extra_headers": {"X-Session-Id": f"session-{number}"}}
    messages: list[Any] = [shown(SIZES[number], f"What is this? {TYPED}")]
    reply = await client.chat.completions.create(messages=messages, **request)
    assert reply.usage is not None
    messages += [reply.choices[0].message.model_dump(exclude_none=True), shown(SIZES[0], "And this?")]
    text = ""
    async for chunk in await client.chat.completions.create(messages=messages, stream=True, **request):
        text += chunk.choices[0].delta.content or ""
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Thanks!"}]
    await client.chat.completions.create(messages=messages, **request)


def recomputed(model: Any, processor: Any, turn: Turn, pictures: list[SeenPicture]) -> list[float]:
    """Return the log probabilities of a turn's reply by a Transformers forward over the stored pictures."""
    ids = torch.tensor([turn.prompt_ids + turn.response_ids])
    media = picture_tensors(processor, [Image.open(io.BytesIO(each.png)) for each in pictures])
    kinds = torch.zeros_like(ids)
    for each in pictures:
        kinds[0, each.start : each.start + each.tokens] = 1
    with torch.no_grad():
        logits = model(input_ids=ids, mm_token_type_ids=kinds, **media).logits[0].float() / turn.temperature
    start = len(turn.prompt_ids)
    return logits[start - 1 : -1].log_softmax(-1).gather(1, ids[0, start:, None])[:, 0].tolist()


async def test_pictures_are_served_recorded_and_trained(repository: Path, tmp_path: Path) -> None:
    model_path = tiny_vision.build(tmp_path / "model")
    settings = {
        "OPENCLAW_JUDGE_CLASS": "tests.helpers.pleased_judge.PleasedJudge",
        "OPENCLAW_HYGIENE": "duplicate",  # a random model ends no reply by itself
        "BATCH_SIZE": BATCH,
        "NUM_ROLLOUT": 1,
        "OPENCLAW_FUSES": "off",
    }
    run = LiveRun(repository, tmp_path / "run", model_path, "rl", **settings)
    try:
        run.wait_ready()
        async with AsyncOpenAI(base_url=run.base_url, api_key="unused", max_retries=0, timeout=120) as client:
            for number in range(SESSIONS):
                await talk(client, number)
        wait_until(lambda: run.healthy() and run.steps() == [0], lambda: f"no step came:\n{run.text()[-4000:]}")
    finally:
        run.stop()
    metrics = logged_records(run.folder)
    apart = max(line[APART] for line in metrics if APART in line)
    model = Qwen3VLForConditionalGeneration.from_pretrained(str(model_path), dtype=torch.float32).eval()
    processor = load_processor(str(model_path))
    ledger = Ledger(run.ledger_path)
    turns = [record.turn for record in ledger.views.turn_records()]
    exact = [
        turn for turn in turns if turn.weight_versions == turns[0].weight_versions and turn.reason != "placeholder"
    ]
    worst = 0.0
    for turn in exact:
        pictures = ledger.pictures.of(turn.id)
        assert len(pictures) == min(2, 1 + turn.index)
        found = recomputed(model, processor, turn, pictures)
        worst = max(worst, *(abs(a - b) for a, b in zip(found, turn.response_logprobs, strict=True)))
    used = [sample for sample in ledger.views.sample_records() if sample.state in ("leased", "trained")]
    print(
        f"{len(exact)} turns, worst difference {worst:.1e}, trainer {apart:.1e}; trained {[sample.turn_id for sample in used]}"
    )
    assert apart < BOUND, "the trainer saw other pictures than the engine"
    assert len(exact) >= BATCH
    assert worst < BOUND
    assert len(used) == BATCH
    assert all(ledger.pictures.of(sample.turn_id) for sample in used)
    assert len(list(ledger.pictures.files())) == len(set(SIZES))
