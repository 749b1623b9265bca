"""Pictures of prompts that are decoded when a sample is answered, not before, and away from the event loop.

Guarantees: no generate, reward or rollout function sees a picture that is not decoded: data sources hand such samples to the core's
rollout functions only, and `decode_pictures` comes before any generate function. A buffer filter may: groups wait as they are. In a
checkpoint a prompt's pictures are what the prompt data hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from slime.args import Arguments
from slime.exceptions import ConfigurationError
from slime.rollout.metrics import flatten
from slime.rollout.multimodal_prompts import StoredPicture, image_processor_of
from slime.utils.images import at_model_size, open_image
from slime.utils.types import Sample

SHOWN_CHARACTERS = 100


def stored_picture(image: Any) -> Any:
    """Return the picture that ``image`` was decoded from, or ``image`` where a function made it."""
    return getattr(image, "stored_picture", image)


def decode(args: Arguments, group: list[Any]) -> None:
    """Give the samples of a group decoded pictures; what they share they share afterwards, and nobody may change it.

    Raises:
        ConfigurationError: when a picture whose header was read cannot be decoded.
    """
    found: dict[int, Any] = {}
    for sample in flatten(group):
        if _has_stored(sample):
            assert sample.multimodal_inputs is not None
            images = [_decoded(args, sample, one, found) for one in sample.multimodal_inputs["images"]]
            sample.multimodal_inputs = {**sample.multimodal_inputs, "images": images}


async def decode_pictures(args: Arguments, group: list[Any]) -> None:
    """As `decode`, in another thread: a screenshot takes a twentieth of a second, in which no answer would be read."""
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
        except (OSError, ValueError, SyntaxError) as error:  # SyntaxError: how PIL says that a PNG is broken
            start = str(sample.prompt)[:SHOWN_CHARACTERS]
            raise ConfigurationError(f"a picture of the prompt that starts with {start!r}: {error}") from error
        if image is not picture.source:
            image.stored_picture = picture
        found[id(picture.source)] = image
    return found[id(picture.source)]


def put_pictures_away(samples: Iterable[Sample]) -> None:
    """Have samples that are not trained on hold the pictures of their prompt as the file has them, and no processor's arrays.

    Pictures that a generate function made stay.
    """
    for sample in samples:
        sample.multimodal_train_inputs = None
        media = sample.multimodal_inputs
        if media and media.get("images"):
            stored = [stored_picture(one) for one in media["images"]]
            images = [one.source if isinstance(one, StoredPicture) else one for one in stored]
            sample.multimodal_inputs = {**media, "images": images}


def record_of(sample: Sample) -> dict[str, Any]:
    """Return `Sample.to_dict`'s answer with the pictures of the prompt as they are stored."""
    record = sample.to_dict()
    media = record["multimodal_inputs"]
    if media and media.get("images"):
        record["multimodal_inputs"] = {**media, "images": [stored_picture(one) for one in media["images"]]}
    return record
