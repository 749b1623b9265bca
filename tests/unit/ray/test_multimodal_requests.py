"""A sample with pictures: what the engine is sent, what training is given, and a response that names a picture."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from groundwork.exceptions import ConfigError
from groundwork.images import one_per_image, open_image
from lab.testkit.engine import mock_engine
from lab.testkit.rollout_engine import RolloutEngine, rollout_args, rollout_engine
from slime.args import Arguments
from slime.exceptions import EngineError
from slime.rollout.generation import GenerateState, generate, load_generate_function
from slime.rollout.metrics import rollout_metrics
from slime.rollout.multimodal_requests import CUT
from slime.rollout.sft_rollout import MaskState, fill
from slime.rollout.sglang_streaming_rollout import generate_streaming
from slime.rollout.train_data import image_fields
from slime.utils.misc import SingletonMeta
from slime.utils.types import Sample
from tests.helpers.pictures import picture

PAD = "<|vision_start|><|image_pad|><|vision_end|>"
PARAMETERS = {"max_new_tokens": 9, "stop_token_ids": [5]}


@pytest.fixture
def args(vision_processor: Path) -> Arguments:
    return rollout_args(vision_processor)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[RolloutEngine]:
    with rollout_engine(monkeypatch) as engine:
        yield engine


def sample_of(**changes: Any) -> Sample:
    media = {"images": [picture(16, 16), picture(32, 24)], "videos": None}
    return Sample(index=7, prompt=f"from {PAD} to {PAD}?", multimodal_inputs=media, **changes)


async def test_the_engine_expands_and_training_has_the_expanded_ids(args: Arguments, engine: RolloutEngine) -> None:
    sample = await generate(args, sample_of(), dict(PARAMETERS))
    state = GenerateState(args)
    pad, video = state.processor.image_token_id, state.processor.video_token_id
    (request,) = engine.requests
    assert request["input_ids"] == state.tokenizer.encode(sample.prompt)
    assert request["input_ids"].count(pad) == 2
    assert request["sampling_params"]["stop_token_ids"] == [5, *sorted((pad, video))]
    sent = [open_image(url).tobytes() for url in request["image_data"]]
    assert sent == [image.tobytes() for image in sample_of().multimodal_inputs["images"]]
    assert sample.tokens.count(pad) == 4 + 12
    assert one_per_image(sample.tokens[:-3], state.placeholders) == request["input_ids"]
    assert set(sample.multimodal_train_inputs) == {"pixel_values", "image_grid_thw"}
    assert sample.multimodal_train_inputs["image_grid_thw"].tolist() == [[1, 4, 4], [1, 6, 8]]
    assert sample.multimodal_train_inputs["pixel_values"].shape == (64, 96)
    sample.validate()


async def test_text_for_a_model_with_eyes_has_no_pictures(args: Arguments, engine: RolloutEngine) -> None:
    sample = await generate(args, Sample(prompt="hello"), dict(PARAMETERS))
    assert "image_data" not in engine.requests[0]
    assert sample.multimodal_train_inputs is None


async def test_an_aborted_response_goes_on_with_its_pictures(args: Arguments, engine: RolloutEngine) -> None:
    engine.cut, engine.prompt_tokens = [2], len(GenerateState(args).tokenizer.encode(sample_of().prompt))
    sample = await generate(args, sample_of(), dict(PARAMETERS))
    first, second = engine.requests
    assert second["input_ids"] == [*first["input_ids"], *engine.reply[:2]]
    assert second["image_data"] == first["image_data"]
    assert sample.tokens[-3:] == engine.reply


async def test_a_response_ends_before_a_placeholder(args: Arguments, engine: RolloutEngine) -> None:
    pad = GenerateState(args).processor.image_token_id
    engine.reply = [40, 41, pad, 42]
    engine.spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 4}]
    sample = await generate(args, sample_of(), dict(PARAMETERS))
    assert sample.tokens[-2:] == [40, 41]
    assert (sample.response_length, len(sample.rollout_log_probs)) == (2, 2)
    assert sample.response == GenerateState(args).tokenizer.decode([40, 41])
    assert (sample.status, sample.metadata[CUT]) == (Sample.Status.TRUNCATED, True)
    assert sample.weight_spans == [["3", 0, 1], ["4", 1, 2]]
    sample.reward = 1.0
    args.reward_key = None
    assert rollout_metrics(args, [sample], 1.0)["rollout/cut_at_placeholder"] == 1


async def test_a_stream_ends_before_a_placeholder(args: Arguments) -> None:
    SingletonMeta.clear(GenerateState)
    pad = GenerateState(args).processor.image_token_id
    async with mock_engine(lambda prompt: [40, 41, pad, 42]) as engine:
        engine.chunk_tokens = 1
        engine.prompt_tokens = lambda payload: len(payload["input_ids"]) + 4 + 12 - 2  # as it repeats placeholders
        host, port = engine.url.removeprefix("http://").split(":")
        args.sglang_router_ip, args.sglang_router_port = host, int(port)
        sample = await generate_streaming(args, sample_of(), dict(PARAMETERS))
        assert len(engine.requests[0]["image_data"]) == 2
    assert sample.tokens[-2:] == [40, 41]
    assert (sample.response_length, sample.status) == (2, Sample.Status.TRUNCATED)
    SingletonMeta.clear(GenerateState)


async def test_an_engine_that_sees_another_picture_is_an_error(
    args: Arguments, engine: RolloutEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = engine._generate

    async def miscounted(request: Any) -> dict[str, Any]:
        reply = await answer(request)
        reply["meta_info"]["prompt_tokens"] = 12
        return reply

    monkeypatch.setattr(engine, "_generate", miscounted)
    with pytest.raises(EngineError, match=r"sample 7 has \d+ prompt tokens with its images, but the engine counts 12"):
        await generate(args, sample_of(), dict(PARAMETERS))


async def test_what_cannot_be_read_is_refused(args: Arguments, engine: RolloutEngine, tiny_random_model: Path) -> None:
    with pytest.raises(ConfigError, match="takes only images"):
        await generate(args, Sample(prompt="a", multimodal_inputs={"videos": ["v"]}), dict(PARAMETERS))
    SingletonMeta.clear(GenerateState)
    blind = rollout_args(tiny_random_model)
    with pytest.raises(ConfigError, match="has no processor for them"):
        await generate(blind, sample_of(), dict(PARAMETERS))


def test_conversations_to_imitate_have_pictures(args: Arguments) -> None:
    SingletonMeta.clear(MaskState)
    args.multimodal_keys, args.loss_mask_type = {"image": "images"}, "qwen3"
    parts = [{"type": "image"}, {"type": "text", "text": "what?"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "a cat"}]
    sample = Sample(prompt=messages, multimodal_inputs={"images": [picture(32, 24)], "videos": None})
    state = MaskState(args)
    fill(sample, state)
    SingletonMeta.clear(MaskState)
    pad = state.processor.image_token_id
    assert sample.tokens.count(pad) == 12
    assert sample.multimodal_train_inputs["image_grid_thw"].tolist() == [[1, 6, 8]]
    trained = [t for t, m in zip(sample.tokens[-sample.response_length :], sample.loss_mask, strict=True) if m]
    assert "a cat" in state.generator.tokenizer.decode(trained)
    assert pad not in trained
    assert torch.is_tensor(sample.multimodal_train_inputs["pixel_values"])


async def test_the_samples_of_a_group_are_prepared_once(
    args: Arguments, engine: RolloutEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = GenerateState(args).prepared
    calls: list[str] = []
    prepare = prepared._prepare

    def counted(prompt: str, images: list[Any]) -> Any:
        calls.append(prompt)
        return prepare(prompt, images)

    monkeypatch.setattr(prepared, "_prepare", counted)
    first, same, other = sample_of(), sample_of(), sample_of()
    same.multimodal_inputs = {"images": list(first.multimodal_inputs["images"])}
    answered = await asyncio.gather(*(generate(args, sample, dict(PARAMETERS)) for sample in (first, same, other)))
    assert len(calls) == 2
    tensors = [sample.multimodal_train_inputs["pixel_values"] for sample in answered]
    assert tensors[0] is tensors[1]
    assert tensors[0] is not tensors[2]
    assert first.tokens == same.tokens
    assert first.tokens is not same.tokens
    one, two, three = image_fields(answered)["multimodal_train_inputs"]
    assert one is two
    assert one is not three


async def test_a_sample_that_is_given_up_leaves_the_others_their_prompt(args: Arguments, engine: RolloutEngine) -> None:
    first, same = sample_of(), sample_of()
    same.multimodal_inputs = {"images": list(first.multimodal_inputs["images"])}
    prepared = GenerateState(args).prepared
    tasks = [asyncio.create_task(prepared.take(sample)) for sample in (first, same)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await tasks[1]
    assert same.tokens
    assert not first.tokens


@pytest.mark.parametrize("prompt", ["nothing", PAD, f"{PAD} {PAD} <|image_pad|>"])
async def test_a_prompt_with_another_number_of_places_is_refused(
    args: Arguments, engine: RolloutEngine, prompt: str
) -> None:
    sample = sample_of()
    sample.prompt = prompt
    places = prompt.count("<|image_pad|>")
    with pytest.raises(ConfigError, match=f"sample 7: the chat template rendered {places} placeholders for 2 pictures"):
        await asyncio.wait_for(generate(args, sample, dict(PARAMETERS)), 30)


def test_a_conversation_with_another_number_of_places_is_refused(args: Arguments) -> None:
    SingletonMeta.clear(MaskState)
    args.multimodal_keys, args.loss_mask_type = {"image": "images"}, "qwen3"
    messages = [{"role": "user", "content": PAD + PAD}, {"role": "assistant", "content": "a cat"}]
    sample = Sample(index=7, prompt=messages, multimodal_inputs={"images": [picture(32, 24)], "videos": None})
    with pytest.raises(ConfigError, match="sample 7: the chat template rendered 2 placeholders for 1 pictures"):
        fill(sample, MaskState(args))
    SingletonMeta.clear(MaskState)


async def test_samples_prepared_at_a_time_keep_their_own_pictures(args: Arguments, engine: RolloutEngine) -> None:
    sizes = [(16, 16), (32, 24), (24, 16)]
    samples = [Sample(prompt=PAD, multimodal_inputs={"images": [picture(*size)]}) for size in sizes]
    answered = await asyncio.gather(*(generate(args, sample, dict(PARAMETERS)) for sample in samples))
    grids = [sample.multimodal_train_inputs["image_grid_thw"].tolist() for sample in answered]
    assert grids == [[[1, 4, 4]], [[1, 6, 8]], [[1, 4, 6]]]


GUI = """
from PIL import Image

async def gui_rollout(vision_model, task: str):
    action = await vision_model.generate(prompt=f"Task: {task}. What next?", image=Image.new("RGB", (32, 24), "red"))
    return [{"action": action, "reward": 0.5}]
"""


async def test_an_episode_of_screenshots_keeps_them_for_training(
    args: Arguments, engine: RolloutEngine, tmp_path: Path
) -> None:
    (tmp_path / "gui_rollout.py").write_text(GUI)
    function = load_generate_function(f"{tmp_path}/gui_rollout.py:gui_rollout")
    [reply] = await function(args, Sample(index=7, prompt="press ok"), dict(PARAMETERS))
    (request,) = engine.requests
    processor = GenerateState(args).processor
    assert "Task: press ok. What next?" in processor.tokenizer.decode(request["input_ids"])
    assert request["input_ids"].count(processor.image_token_id) == len(request["image_data"]) == 1
    assert reply.multimodal_train_inputs["image_grid_thw"].tolist() == [[1, 6, 8]]
    assert (reply.reward, reply.tokens[-3:]) == (0.5, engine.reply)
    reply.validate()
