"""The pictures of one episode: from what the environment shows to what policy, trainer and records take.

A message holds a picture as the part ``{"type": "image", "number": N}``, and its prompt one placeholder for it, which
`Pictures.expanded` repeats as the model's processor does. Guarantees: a picture is sized once, to the processor's grid, so
engine and trainer compute the same pixel values. A placeholder that a text spells is not a picture; only parts are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from groundwork.chat_messages import Message
from groundwork.exceptions import ConfigError
from groundwork.images import at_model_size, image_tokens, open_image, picture_tensors, repeat_placeholders
from groundwork.processors import encode_image_for_rollout_engine

IMAGE = "image"


class Pictures:
    """Pictures by number, in the order in which the policy saw them."""

    def __init__(self, processor: Any | None) -> None:
        """Prepare for the processor of the policy's checkpoint; None: it has no eyes."""
        self._processor = processor
        self._images: list[Any] = []

    async def add(self, encoded: Sequence[str]) -> list[Message]:
        """Return the parts of new pictures.

        Args:
            encoded: base64 of PNG files.

        Raises:
            ConfigError: the model has no eyes.
        """
        if encoded and self._processor is None:
            raise ConfigError(
                "the observation has pictures, but the checkpoint has no preprocessor_config.json; use a vision-language "
                "model, or an environment without pictures (GUI_OBSERVATION_TYPE=a11y_tree)"
            )
        first = len(self._images)
        self._images += await asyncio.to_thread(lambda: [self._sized(item) for item in encoded])
        return [{"type": IMAGE, "number": number} for number in range(first, len(self._images))]

    def image(self, number: int) -> Any:
        """Return a picture as PIL has it, at the model's size."""
        return self._images[number]

    def images(self, numbers: Sequence[int]) -> list[Any]:
        """Return several."""
        return [self._images[number] for number in numbers]

    async def encoded(self, numbers: Sequence[int]) -> list[str]:
        """Return pictures as ``data:`` URLs."""
        images = self.images(numbers)
        return await asyncio.to_thread(lambda: [encode_image_for_rollout_engine(image) for image in images])

    def more_tokens(self, messages: Sequence[Message]) -> int:
        """Return how many tokens the pictures of messages have beyond one each."""
        return sum(self._count(number) - 1 for number in numbers_of(messages))

    def expanded(self, ids: Sequence[int], numbers: Sequence[int]) -> list[int]:
        """Return prompt ids with each picture's placeholder repeated.

        Raises:
            ConfigError: the chat template did not write one placeholder for each picture.
        """
        if not numbers:
            return list(ids)
        assert self._processor is not None
        try:
            return repeat_placeholders(ids, self._processor.image_token_id, [*map(self._count, numbers)])
        except ValueError as error:
            raise ConfigError(f"{error}; use a vision-language model's template") from error

    def tensors(self, numbers: Sequence[int]) -> dict[str, Any] | None:
        """Return ``pixel_values`` [patches, D] and ``image_grid_thw`` [pictures, 3]; None without pictures. Takes a while."""
        if not numbers:
            return None
        assert self._processor is not None
        return picture_tensors(self._processor, self.images(numbers))

    def _sized(self, encoded: str) -> Any:
        return at_model_size(open_image(f"data:image/png;base64,{encoded}"), self._processor)

    def _count(self, number: int) -> int:
        return image_tokens(self._processor, *self._images[number].size)


def picture_tokens_of(processor: Any) -> Callable[[str], int]:
    """Return a function that counts the tokens of a picture's ``data:`` URL for the model of ``processor``."""
    return lambda url: image_tokens(processor, *open_image(url).size)


def numbers_of(messages: Sequence[Message]) -> list[int]:
    """Return the numbers of the pictures in messages, in order."""
    return [part["number"] for message in messages for part in parts_of(message) if part["type"] == IMAGE]


def parts_of(message: Mapping[str, Any]) -> list[Message]:
    """Return the parts of a message's content; a text is one part."""
    content = message.get("content")
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]


def with_pictures(message: Message, pictures: Sequence[Message]) -> Message:
    """Return a message that begins with pictures."""
    if not pictures:
        return message
    texts = [part for part in parts_of(message) if part.get("text")]
    return {**message, "content": [*pictures, *texts]}
