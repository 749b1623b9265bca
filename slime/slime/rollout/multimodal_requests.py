"""A sample with pictures between prompt and engine.

Guarantees: the ids of a prompt with pictures and the tensors that training reads are those of one call of the processor, and an
engine that counts other prompt tokens is an error. A response ends before a placeholder that the policy sampled: no picture belongs to it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from slime.exceptions import ConfigurationError, EngineError
from slime.rollout.multimodal_prompts import check_places
from slime.utils.processing_utils import encode_image_for_rollout_engine
from slime.utils.types import Sample

CUT = "cut_at_placeholder"
NOT_TRAINED_ON = ("input_ids", "attention_mask")
MOST_PREPARED = 8


def images_of(sample: Sample) -> list[Any]:
    """Return the pictures of a sample.

    Raises:
        ConfigurationError: when it has videos.
    """
    media = sample.multimodal_inputs or {}
    if media.get("videos"):
        raise ConfigurationError("videos are for custom generate functions; the built-in one takes images")
    return media.get("images") or []


def placeholder_ids(processor: Any) -> frozenset[int]:
    """Return the ids that stand for a part of a picture or video; empty without a processor."""
    names = ("image_token_id", "video_token_id")
    found = (getattr(processor, name, None) for name in names)
    return frozenset(token for token in found if token is not None)


class PreparedPrompts:
    """What a processor made of the newest prompts with pictures: the samples of a group share one call and its arrays.

    Attributes:
        processor: of the model; None for one that has none.
    """

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        # The pictures are kept with their task, so that no other picture gets their ids.
        self._newest: OrderedDict[tuple[Any, ...], tuple[list[Any], asyncio.Task[Any]]] = OrderedDict()

    async def take(self, sample: Sample) -> None:
        """Give a sample with pictures the ids of its prompt and its ``multimodal_train_inputs``, which nobody may change.

        Outputs with one entry per prompt token are left out: they say nothing about the response and follow from the ids.

        Raises:
            ConfigurationError: when the model has no processor, or the prompt another number of placeholders than pictures.
        """
        if self.processor is None:
            raise ConfigurationError(
                "a sample has images, and the model of --hf-checkpoint has no processor to read them with"
            )
        images = images_of(sample)
        # The processor raises StopIteration at a superfluous place, for which a future would wait forever.
        check_places(f"sample {sample.index}", sample.prompt.count(self.processor.image_token), images)
        key = (sample.prompt, *map(id, images))
        if key not in self._newest:
            # Elsewhere: preparing a screenshot takes a tenth of a second, in which no answer would be read.
            self._newest[key] = images, asyncio.create_task(asyncio.to_thread(self._prepare, sample.prompt, images))
            if len(self._newest) > MOST_PREPARED:
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
    """Return ids and loss mask of a conversation with a placeholder per part of each image; sets ``multimodal_train_inputs``.

    Args:
        processor: of the model.
        sample: with the images.
        tokens: ids with one placeholder per image.
        mask: of ``tokens``; a placeholder's parts all have its entry.

    Raises:
        ConfigurationError: when there are more or fewer placeholders than images.
    """
    check_places(f"sample {sample.index}", tokens.count(processor.image_token_id), images_of(sample))
    sample.multimodal_train_inputs = dict(processor.image_processor(images=images_of(sample), return_tensors="pt"))
    grids = sample.multimodal_train_inputs["image_grid_thw"]
    counts = iter((grids.prod(dim=1) // processor.image_processor.merge_size**2).tolist())
    times = [next(counts) if token == processor.image_token_id else 1 for token in tokens]
    repeated = [pair for pair, count in zip(zip(tokens, mask, strict=True), times, strict=True) for _ in range(count)]
    return [token for token, _ in repeated], [entry for _, entry in repeated]


def one_per_image(tokens: Sequence[int], placeholders: frozenset[int]) -> list[int]:
    """Return ``tokens`` with every run of a placeholder as one: the form in which an engine takes ids beside images."""
    runs = ((token, list(run)) for token, run in itertools.groupby(tokens))
    return [token for token, run in runs for _ in (run[:1] if token in placeholders else run)]


async def image_fields(processor: Any, sample: Sample) -> dict[str, Any]:
    """Return what ``/generate`` is sent about the pictures of a sample: ``input_ids`` and ``image_data``; empty without any."""
    images = images_of(sample)
    if not images:
        return {}
    encoded = await asyncio.to_thread(lambda: [encode_image_for_rollout_engine(image) for image in images])
    return {"input_ids": one_per_image(sample.tokens, placeholder_ids(processor)), "image_data": encoded}


def check_prompt_length(sample: Sample, expected: int, meta: dict[str, Any]) -> None:
    """Check that the engine saw as many prompt tokens as were processed here.

    Raises:
        EngineError: saying both counts.
    """
    counted = meta.get("prompt_tokens")
    if images_of(sample) and counted not in (None, expected):
        raise EngineError(
            f"sample {sample.index} has {expected} prompt tokens with its images, the engine counts {counted}; both must read "
            "the same preprocessor_config.json"
        )


def before_placeholder(token_ids: Sequence[int], placeholders: frozenset[int]) -> int:
    """Return how many of the ids come before the first placeholder."""
    return next((place for place, token in enumerate(token_ids) if token in placeholders), len(token_ids))
