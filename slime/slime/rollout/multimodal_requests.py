"""A sample with pictures between prompt and engine.

Guarantees: one call of the processor makes both the ids of a prompt with pictures and the tensors for training. An
engine that counts a different number of prompt tokens is an error. A response ends before a sampled placeholder, which
has no picture.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from groundwork.exceptions import ConfigError
from groundwork.images import one_per_image, placeholder_ids
from groundwork.processors import encode_image_for_rollout_engine
from slime.exceptions import EngineError
from slime.rollout.multimodal_prompts import check_places
from slime.utils.types import Sample

CUT = "cut_at_placeholder"
NOT_TRAINED_ON = ("input_ids", "attention_mask")
MAX_PREPARED = 8


def images_of(sample: Sample) -> list[Any]:
    """Return the pictures of a sample.

    Raises:
        ConfigError: the sample has videos.
    """
    media = sample.multimodal_inputs or {}
    if media.get("videos"):
        raise ConfigError(
            "the built-in generate function takes only images; use --custom-generate-function-path for videos"
        )
    return media.get("images") or []


class PreparedPrompts:
    """Processor results of the newest prompts with pictures; a group's samples share one call and its arrays.

    Attributes:
        processor: the model's processor, or None.
    """

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        # Keep the pictures with their task, so that no other object reuses their id().
        self._newest: OrderedDict[tuple[Any, ...], tuple[list[Any], asyncio.Task[Any]]] = OrderedDict()

    async def take(self, sample: Sample) -> None:
        """Set the prompt ids and the read-only ``multimodal_train_inputs`` of a sample with pictures.

        Outputs with one entry per prompt token are left out: they exclude the response and follow from the ids.

        Raises:
            ConfigError: the model has no processor, or placeholders and pictures differ in number.
        """
        if self.processor is None:
            raise ConfigError("a sample has images, but the model of --hf-checkpoint has no processor for them")
        images = images_of(sample)
        # The processor raises StopIteration for a superfluous placeholder, which a future cannot carry.
        check_places(f"sample {sample.index}", sample.prompt.count(self.processor.image_token), images)
        key = (sample.prompt, *map(id, images))
        if key not in self._newest:
            # In a thread: preparing a screenshot takes a tenth of a second, which would block the event loop.
            self._newest[key] = images, asyncio.create_task(asyncio.to_thread(self._prepare, sample.prompt, images))
            if len(self._newest) > MAX_PREPARED:
                self._newest.popitem(last=False)
        outputs = await asyncio.shield(self._newest[key][1])
        prompt = outputs["input_ids"]
        sample.tokens = prompt[0].tolist()
        sample.multimodal_train_inputs = {
            name: value
            for name, value in outputs.items()
            if name not in NOT_TRAINED_ON and tuple(value.shape) != tuple(prompt.shape)
        }

    def _prepare(self, prompt: str, images: list[Any]) -> Any:
        return self.processor(text=[prompt], images=images, return_tensors="pt", add_special_tokens=False)


def expand_images(processor: Any, sample: Sample, tokens: list[int], mask: list[int]) -> tuple[list[int], list[int]]:
    """Return ids and mask with each image's placeholder expanded to its parts; sets ``multimodal_train_inputs``.

    Args:
        processor: processor of the model.
        sample: sample with the images.
        tokens: ids with one placeholder per image.
        mask: mask of ``tokens``; all parts of a placeholder inherit its entry.

    Raises:
        ConfigError: placeholders and images differ in number.
    """
    check_places(f"sample {sample.index}", tokens.count(processor.image_token_id), images_of(sample))
    sample.multimodal_train_inputs = dict(processor.image_processor(images=images_of(sample), return_tensors="pt"))
    grids = sample.multimodal_train_inputs["image_grid_thw"]
    counts = iter((grids.prod(dim=1) // processor.image_processor.merge_size**2).tolist())
    times = [next(counts) if token == processor.image_token_id else 1 for token in tokens]
    repeated = [pair for pair, count in zip(zip(tokens, mask, strict=True), times, strict=True) for _ in range(count)]
    return [token for token, _ in repeated], [entry for _, entry in repeated]


async def image_fields(processor: Any, sample: Sample) -> dict[str, Any]:
    """Return the ``/generate`` fields of a sample's pictures, ``input_ids`` and ``image_data``; empty without any."""
    images = images_of(sample)
    if not images:
        return {}
    encoded = await asyncio.to_thread(lambda: [encode_image_for_rollout_engine(image) for image in images])
    return {"input_ids": one_per_image(sample.tokens, placeholder_ids(processor)), "image_data": encoded}


def check_prompt_length(sample: Sample, expected: int, meta: dict[str, Any]) -> None:
    """Check that the engine counted the same number of prompt tokens as the processor here.

    Raises:
        EngineError: the counts differ; the message gives both.
    """
    counted = meta.get("prompt_tokens")
    if images_of(sample) and counted not in (None, expected):
        raise EngineError(
            f"sample {sample.index} has {expected} prompt tokens with its images, but the engine counts {counted}; both must use "
            "the same preprocessor_config.json"
        )


def before_placeholder(token_ids: Sequence[int], placeholders: frozenset[int]) -> int:
    """Return how many of the ids come before the first placeholder."""
    return next((place for place, token in enumerate(token_ids) if token in placeholders), len(token_ids))
