"""Pictures in the agent loop: exact prompts, sizes once, the context policy, and samples with their pixel values."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from agentrl.environment import Task
from agentrl.protocol import JsonObject, Observation, StepResult
from agentrl.rollout import generate as loop
from agentrl.rollout.pictures import numbers_of, picture_tokens_of
from agentrl.rollout.play import NO_PICTURE, without_old_pictures
from agentrl.rollout.step_judge import step_question
from groundwork.exceptions import ConfigError
from groundwork.processors import encode_image_for_rollout_engine, load_processor
from lab.testkit.agent_rollouts import Talk, talk
from openclaw.judge.client import JudgeClient, JudgeSampling
from slime.rollout.train_data import convert
from slime.utils.types import Sample
from tests.helpers import tiny_vision
from tests.helpers.agent_stages import END, Stage, staged
from tests.helpers.pictures import picture, png

SIZES = [(24, 16), (16, 24), (30, 30), (20, 20), (16, 16)]


class Gallery(Talk):
    """Shows a picture at the start and after each action."""

    def _show(self) -> tuple[str, ...]:
        return (base64.b64encode(png(picture(*SIZES[self.count]))).decode(),)

    async def reset(self, task: Task, seed: int) -> Observation:
        first = await super().reset(task, seed)
        return first.model_copy(update={"images": self._show()})

    async def step(self, action: JsonObject) -> StepResult:
        result = await super().step(action)
        seen = result.observation.model_copy(update={"images": self._show()})
        return result.model_copy(update={"observation": seen})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vision.build(tmp_path_factory.mktemp("vision"))


def gallery(
    replies: Sequence[str], folder: Path, model: Path, patch: pytest.MonkeyPatch, **data: Any
) -> AbstractAsyncContextManager[Stage]:
    environment = type("OwnGallery", (Gallery,), {**vars(talk(Task("guess", {"steps": 3, **data})))})
    return staged(environment, replies, folder, model, patch)


def sizes_of(sample: Sample) -> list[tuple[int, int]]:
    """Return width and height in pixels of a sample's pictures, by their grids."""
    assert sample.multimodal_train_inputs is not None
    grids = sample.multimodal_train_inputs["image_grid_thw"].tolist()
    return [(width * tiny_vision.PATCH, height * tiny_vision.PATCH) for _, height, width in grids]


async def test_an_episode_with_pictures_is_exact(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids, placeholders, pixel values and what the engine is sent belong together, and only the template writes a picture."""
    async with gallery([f"one{END}", f"two{END}", f"three{END}"], tmp_path, model, monkeypatch) as on:
        samples = await on.play()
        (sample,) = samples
        assert sizes_of(sample) == [(24, 16), (16, 24), (32, 32)]
        processor = tiny_vision_processor(on)
        pad = processor.image_token_id
        counts = [width * height // 64 for width, height in sizes_of(sample)]
        assert sample.tokens.count(pad) == sum(counts)
        runs = "".join("p" if token == pad else "." for token in sample.tokens).replace(".", " ").split()
        assert [len(run) for run in runs] == counts
        expected = [
            picture(*size).resize(seen, Image.Resampling.BICUBIC)
            for size, seen in zip(SIZES, sizes_of(sample), strict=False)
        ]
        whole = processor.image_processor(images=expected, return_tensors="pt")
        assert torch.equal(sample.multimodal_train_inputs["pixel_values"], whole["pixel_values"])
        last = on.policy.requests[-1]
        assert last["input_ids"].count(pad) == len(last["image_data"]) == 3
        sent = [Image.open(io.BytesIO(base64.b64decode(each.partition(",")[2]))) for each in last["image_data"]]
        assert [each.size for each in sent] == sizes_of(sample), "the engine gets them at the model's size"
        assert sum(sample.loss_mask) == sample.loss_mask.count(1)
        data = convert(on.args, samples)
        assert len(data["multimodal_train_inputs"]) == 1
        names = sorted(path.name for path in (tmp_path / "episodes").glob("*.png"))
        assert len(names) == 4, "the record has every picture, that of the last look too"


def tiny_vision_processor(on: Stage) -> Any:
    from slime.rollout.generation import GenerateState

    return GenerateState(on.args).processor


async def test_old_pictures_are_left_out_and_samples_have_what_their_prompts_had(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_KEEP_PICTURES", "1")
    async with gallery([f"one{END}"], tmp_path, model, monkeypatch) as on:
        samples = await on.play()
        assert [sizes_of(sample) for sample in samples] == [[(24, 16)], [(16, 24)], [(32, 32)]]
        pad = tiny_vision_processor(on).image_token_id
        for sample in samples:
            prompt = sample.tokens[: -sample.response_length]
            assert prompt.count(pad) == sum(width * height // 64 for width, height in sizes_of(sample))
        text = on.tokenizer.decode(samples[2].tokens)
        assert text.count(NO_PICTURE) == 2
        assert text.count(f"assistant\none{END}") == 3, "replies stay"
        for request in on.policy.requests:
            assert len(request["image_data"]) == 1


async def test_a_typed_placeholder_is_no_picture(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = "<|vision_start|><|image_pad|><|vision_end|>"
    async with gallery([f"one{END}"], tmp_path, model, monkeypatch, text=typed, steps=1) as on:
        (sample,) = await on.play()
        assert sample.tokens.count(tiny_vision_processor(on).image_token_id) == 6
        assert typed in on.tokenizer.decode(sample.tokens)
        assert len(on.policy.requests[0]["image_data"]) == 1


async def test_evaluation_keeps_no_pixel_values(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gallery([f"one{END}"], tmp_path, model, monkeypatch) as on:
        (sample,) = await on.play(evaluation=True)
        assert sample.multimodal_train_inputs is None


async def test_a_model_without_eyes_is_told(
    tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gallery([f"one{END}"], tmp_path, tiny_random_model, monkeypatch) as on:
        with pytest.raises(ConfigError, match=r"no preprocessor_config\.json.*GUI_OBSERVATION_TYPE=a11y_tree"):
            await on.play()


def test_pictures_count_for_the_context(tmp_path: Path) -> None:
    message: dict[str, Any] = {
        "role": "user",
        "content": [{"type": "image", "number": 0}, {"type": "text", "text": "x"}],
    }
    more = {"role": "tool", "content": [{"type": "image", "number": 1}, {"type": "image", "number": 2}]}
    assert without_old_pictures([message, more], 3) is None
    cut = without_old_pictures([message, more], 1)
    assert cut is not None
    assert numbers_of([each for _, each in cut.kept]) == [2]
    assert cut.shortened == (0, 1)
    assert [position for position, _ in cut.kept] == [None, None]
    assert message["content"][0] == {"type": "image", "number": 0}, "the messages themselves stay as they are"


async def test_a_prompt_that_pictures_make_too_long_ends_the_episode(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gallery([f"one{END}"], tmp_path, model, monkeypatch) as on:
        (sample,) = await on.play()
        bare = len(sample.tokens) - sample.response_length - 6 + 1
        (short,) = await on.play(rollout_max_context_len=(bare + 2) * 4 // 3)
        assert short.metadata["agent"]["ending"] == "context"


async def test_the_judge_sees_the_screen_before_and_after_a_step(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pictures go to the judge's engine in the order of the places that its prompt has for them."""
    sent: list[dict[str, Any]] = []

    class Engine:
        async def generate(self, payload: dict[str, Any], owner: str | None = None) -> dict[str, Any]:
            sent.append(payload)
            return {"text": "Good. \\boxed{1}", "meta_info": {"finish_reason": {"type": "stop"}}}

        async def answers(self) -> bool:
            return True

        async def close(self) -> None: ...

    monkeypatch.setenv("AGENTRL_JUDGE_PICTURES", "2")
    async with gallery([f"one{END}"], tmp_path, model, monkeypatch) as on:
        judge = JudgeClient(Engine(), on.tokenizer, "full", JudgeSampling(grammar=False))
        monkeypatch.setattr(loop, "judge_of", lambda args: judge)
        (sample,) = await on.play(prm_m=1, prm_step_coef=1.0)
        pad = tiny_vision_processor(on).image_token_id
        assert [payload["input_ids"].count(pad) for payload in sent] == [2, 2, 2]
        first = [Image.open(io.BytesIO(base64.b64decode(each.partition(",")[2]))) for each in sent[0]["image_data"]]
        assert [each.size for each in first] == [(24, 16), (16, 24)]
        asked = on.tokenizer.decode(sent[0]["input_ids"])
        assert asked.index("Screen before the step") < asked.index("Screen after the step")
        assert sample.reward == 2.0


async def test_the_judges_bound_counts_the_tokens_of_pictures(model: Path) -> None:
    processor = load_processor(str(model))
    answering: Any = None  # nobody is asked
    judge = JudgeClient(
        answering, processor.tokenizer, "full", JudgeSampling(grammar=False), picture_tokens_of(processor)
    )
    urls = [encode_image_for_rollout_engine(picture(*size)) for size in SIZES[:3]]
    reply = {"role": "assistant", "content": "Click."}
    asked = step_question("Press.", [], reply, [{"role": "tool", "content": ""}], before=urls[:1], after=urls[1:])
    text = processor.tokenizer.decode(judge.prompt_ids("prm", asked))
    images = [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in urls]
    sent = processor(text=[text], images=images, return_tensors="pt")["input_ids"]
    assert await judge.length("prm", asked) == sent.shape[1]
