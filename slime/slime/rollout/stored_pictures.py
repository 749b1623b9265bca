"""Decode prompts' pictures only when a sample is answered, and outside the event loop.

Guarantees: generate, reward and rollout functions only see decoded pictures. Data sources hand undecoded samples only
to the core's rollout functions, and `decode_pictures` runs before any generate function. A buffer filter may see them
undecoded. A checkpoint stores a prompt's pictures as in the prompt data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from groundwork.exceptions import ConfigError
from groundwork.images import at_model_size, open_image
from slime.args import Arguments
from slime.rollout.metrics import flatten
from slime.rollout.multimodal_prompts import StoredPicture, image_processor_of
from slime.utils.types import Sample

SHOWN_CHARACTERS = 100


def stored_picture(image: Any) -> Any:
    """Return the stored picture that ``image`` was decoded from, or ``image`` if a function made it."""
    return getattr(image, "stored_picture", image)


def decode(args: Arguments, group: list[Any]) -> None:
    """Decode the pictures of a group's samples; shared pictures stay shared and are read-only.

    Raises:
        ConfigError: a picture with a valid header cannot be decoded.
    """
    results: dict[int, Any] = {}
    for sample in flatten(group):
        if _has_stored(sample):
            assert sample.multimodal_inputs is not None
            images = [_decoded(args, sample, one, results) for one in sample.multimodal_inputs["images"]]
            sample.multimodal_inputs = {**sample.multimodal_inputs, "images": images}


async def decode_pictures(args: Arguments, group: list[Any]) -> None:
    """Run `decode` in a thread, because a screenshot takes a twentieth of a second and would block the event loop."""
    if any(map(_has_stored, flatten(group))):
        await asyncio.to_thread(decode, args, group)


def _has_stored(sample: Sample) -> bool:
    images = (sample.multimodal_inputs or {}).get("images") or []
    return any(isinstance(one, StoredPicture) for one in images)


def _decoded(args: Arguments, sample: Sample, picture: Any, found: dict[int, Any]) -> Any:
    if not isinstance(picture, StoredPicture):
        return picture
    if id(picture.source) not in found:
        try:
            image = at_model_size(open_image(picture.source), image_processor_of(args.hf_checkpoint))
        except (OSError, ValueError, SyntaxError) as error:  # PIL raises SyntaxError for a broken PNG
            start = str(sample.prompt)[:SHOWN_CHARACTERS]
            raise ConfigError(f"a picture of the prompt that starts with {start!r}: {error}") from error
        if image is not picture.source:
            image.stored_picture = picture
        found[id(picture.source)] = image
    return found[id(picture.source)]


def put_pictures_away(samples: Iterable[Sample]) -> None:
    """Reset untrained samples to their stored prompt pictures, and drop their processor arrays.

    Pictures from a generate function stay.
    """
    for sample in samples:
        sample.multimodal_train_inputs = None
        media = sample.multimodal_inputs
        if media and media.get("images"):
            stored = [stored_picture(one) for one in media["images"]]
            images = [one.source if isinstance(one, StoredPicture) else one for one in stored]
            sample.multimodal_inputs = {**media, "images": images}


def record_of(sample: Sample) -> dict[str, Any]:
    """Return `Sample.to_dict` with the prompt's pictures as stored."""
    record = sample.to_dict()
    media = record["multimodal_inputs"]
    if media and media.get("images"):
        record["multimodal_inputs"] = {**media, "images": [stored_picture(one) for one in media["images"]]}
    return record
