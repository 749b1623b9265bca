"""Rendered prompts, and prompts with pictures: the columns named by ``--multimodal-keys`` become parts of the messages.

Guarantees: the ``n``-th placeholder of a prompt is the ``n``-th picture of its row. A missing, superfluous or
unreadable picture is an error that names the row, or the prompt if only decoding reveals it. A prompt holds its
pictures as stored in the file; they are decoded once for all samples of a group.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from groundwork.chat_messages import TEMPLATE_ERRORS, check_messages, in_template_form, read_tools
from groundwork.exceptions import ConfigError
from groundwork.images import image_tokens, model_size, open_image
from groundwork.processors import load_processor
from slime.args import Arguments, required
from slime.utils.types import MultimodalTypes, Sample

logger = logging.getLogger(__name__)

IMAGE = MultimodalTypes.IMAGE


@dataclass(frozen=True)
class StoredPicture:
    """A picture as stored in the prompt data, not decoded yet.

    Attributes:
        source: argument for `open_image`.
    """

    source: Any


@functools.cache
def image_processor_of(checkpoint: str) -> Any:
    """Return the processor of a vision-language checkpoint.

    Raises:
        ConfigError: the checkpoint has no processor.
    """
    processor = load_processor(checkpoint)
    if processor is None:
        raise ConfigError(
            f"--multimodal-keys needs a vision-language model, but {checkpoint} has no processor; give a folder with "
            "preprocessor_config.json to --hf-checkpoint, or remove the flag"
        )
    return processor


def with_pictures(
    args: Arguments, row: dict[str, Any], prompt: Any, number: int
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return a row's messages with its pictures as parts ``{"type": "image", "image": …}``, and these pictures.

    Args:
        args: arguments of the run, with ``multimodal_keys``.
        row: row of the prompt data.
        prompt: its prompt, a text or a list of messages. A picture replaces each ``<image>`` in the text, or each
            content part of type ``image`` without one.
        number: number of the row, from 1, for errors.

    Raises:
        ConfigError: placeholders and pictures differ in number, or a picture cannot be read.
    """
    column = required("--multimodal-keys", args.multimodal_keys)[IMAGE.name]
    if column not in row:
        raise ConfigError(f"prompt data has no column {column!r}; it has {', '.join(sorted(row))}")
    cell = row[column]
    given = [] if cell is None else cell if isinstance(cell, list) else [cell]
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    messages = [{**message, "content": _parts(message.get("content"))} for message in messages]
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    pictures = [part for part in parts if part.get("type") == IMAGE.name]
    empty = [part for part in pictures if "image" not in part]
    if len(empty) != len(given):
        raise ConfigError(
            f"row {number} of the prompt data: {len(empty)} {IMAGE.placeholder} in the prompt and {len(given)} pictures in "
            f"column {column!r}; write {IMAGE.placeholder} once per picture, where it belongs"
        )
    for part, source in zip(empty, given, strict=True):
        part["image"] = source
    for part in pictures:
        try:
            model_size(image_processor_of(args.hf_checkpoint), *open_image(part["image"]).size)
        except (OSError, ValueError) as error:
            raise ConfigError(f"row {number} of the prompt data, column {column!r}: {error}") from error
    return messages, [part["image"] for part in pictures]


def rendered_prompt(args: Arguments, renderer: Any, messages: Any, tools: Any) -> str:
    """Return the prompt that serving would give for these messages."""
    check_messages(messages, parts=("text", "image") if args.multimodal_keys else ("text",))
    try:
        offered = read_tools(tools)
        return in_template_form(
            messages,
            lambda plain: renderer.apply_chat_template(
                plain, tools=offered, tokenize=False, add_generation_prompt=True, **args.apply_chat_template_kwargs
            ),
        )
    except ConfigError:
        raise
    except TEMPLATE_ERRORS as error:
        raise ConfigError(f"the chat template refuses the messages: {error}") from error


def check_places(name: str, found: int, pictures: Sequence[Any]) -> None:
    """Check that a rendered conversation has one placeholder per picture.

    Raises:
        ConfigError: the numbers differ; the message gives both and ``name``.
    """
    if pictures and found != len(pictures):
        raise ConfigError(
            f"{name}: the chat template rendered {found} placeholders for {len(pictures)} pictures; use the template of a "
            "vision-language model, and no message that spells out the model's own placeholder"
        )


def _parts(content: Any) -> Any:
    """Return a content with pictures as parts, any other content unchanged."""
    if isinstance(content, str) and IMAGE.placeholder in content:
        first, *rest = content.split(IMAGE.placeholder)
        texts = [[{"type": IMAGE.name}, {"type": "text", "text": text}] for text in rest]
        parts = [{"type": "text", "text": first}, *(part for pair in texts for part in pair)]
        return [part for part in parts if part.get("text") != ""]
    if isinstance(content, list):  # in a table column every part has every key
        return [{key: value for key, value in part.items() if value is not None} for part in content]
    return content


def expanded_tokens(args: Arguments, prompt: Sample) -> int:
    """Return the tokens of a prompt's pictures beyond one per placeholder."""
    if prompt.multimodal_inputs is None:
        return 0
    processor = image_processor_of(args.hf_checkpoint)
    sizes = [open_image(source).size for source in prompt.multimodal_inputs["images"]]
    return sum(image_tokens(processor, *size) - 1 for size in sizes)


def fresh_copies(prompt: Sample, count: int) -> list[Sample]:
    """Return ``count`` samples of a prompt that share its pictures, for `slime.rollout.stored_pictures` to decode."""
    media, plain = prompt.multimodal_inputs, copy.copy(prompt)
    plain.multimodal_inputs = None
    copies = [copy.deepcopy(plain) for _ in range(count)]
    if media is not None:
        images = [StoredPicture(source) for source in media["images"]]
        for sample in copies:
            sample.multimodal_inputs = {"images": list(images), "videos": None}
    return copies


def copy_sharing_media(value: Any, groups: Any) -> Any:
    """Return a deep copy of ``value`` that shares pictures and processor arrays, which may have many MB.

    Args:
        value: the object to copy, which contains ``groups``.
        groups: lists of samples or of their `to_dict` results; their pictures and arrays are read-only.
    """
    return copy.deepcopy(value, {id(one): one for one in _media(groups)})


def _media(item: Any) -> Iterator[Any]:
    if isinstance(item, list):
        for one in item:
            yield from _media(one)
        return
    entries = item if isinstance(item, dict) else vars(item)
    for name in ("multimodal_inputs", "multimodal_train_inputs"):
        for values in (entries.get(name) or {}).values():
            yield from values if isinstance(values, list) else [values]


def prompt_tokens(tokenizer: Any, prompt: Any) -> int:
    """Return the number of tokens of a rendered prompt or a list of messages."""
    if isinstance(prompt, str):
        return len(tokenizer.encode(prompt, add_special_tokens=False))
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return len(tokenizer.encode(text, add_special_tokens=False))


def drop_long_prompts(args: Arguments, tokenizer: Any, samples: list[Sample], longest: int) -> list[Sample]:
    """Return the samples whose prompt, including pictures, has at most ``longest`` tokens."""
    kept = [
        sample
        for sample in samples
        if prompt_tokens(tokenizer, sample.prompt) + expanded_tokens(args, sample) <= longest
    ]
    if len(kept) < len(samples):
        logger.warning("left out %d of %d prompts with over %d tokens", len(samples) - len(kept), len(samples), longest)
    return kept
