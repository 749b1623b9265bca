"""Pictures: from a data set's or message's content to what a model sees.

Guarantee: `at_model_size` resizes an image to the model's input size. Neither the processor here nor the engine's
resamples it again, so both compute the same pixel values with any image library.
"""

from __future__ import annotations

import base64
import binascii
import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DATA_URL = "data:"
FILE_URL = "file://"
MAX_PATH_LENGTH = 1024
WHITE = (255, 255, 255)
TENSORS = ("pixel_values", "image_grid_thw")
# Screenshots compress nearly as well at the fastest level as at the best one.
PNG_LEVEL = 1
DEFAULT_PATCH_SIZE = 14
DEFAULT_MERGE_SIZE = 2
DEFAULT_PIXELS = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}


def open_image(source: Any, formats: tuple[str, ...] | None = None) -> Any:
    """Return a PIL image; only the header of a file or of bytes is read yet.

    Args:
        source: a path, ``file://`` URL, ``data:`` URL or base64 text, encoded bytes, ``{"bytes": …, "path": …}`` (as
            Hugging Face data sets store a picture), or a PIL image.
        formats: PIL's names of the allowed formats; None: all.

    Raises:
        ValueError: the source is none of these, not an image, or larger than PIL allows.
        FileNotFoundError: the path does not exist.
    """
    from PIL import Image, UnidentifiedImageError

    if isinstance(source, Image.Image):
        return source
    if isinstance(source, dict):
        source = source.get("bytes") or source.get("path")
    if isinstance(source, str):
        source = _bytes_or_path(source)
    if not isinstance(source, bytes | Path):
        raise ValueError(
            f"{type(source).__name__} is not a picture; give a path, a data: URL, base64 text or encoded bytes"
        )
    if isinstance(source, Path) and not source.is_file():
        raise FileNotFoundError(f"no such file: {source}")
    try:
        return Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=formats)
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from error
    except UnidentifiedImageError as error:
        raise ValueError(f"{'the data are' if isinstance(source, bytes) else f'{source} is'} not a picture") from error


def _bytes_or_path(text: str) -> bytes | Path:
    if text.startswith(FILE_URL):
        return Path(text.removeprefix(FILE_URL))
    if not text.startswith(DATA_URL):
        if len(text) < MAX_PATH_LENGTH and (Path(text).suffix or Path(text).is_file()):
            return Path(text)
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error:
            return Path(text[:MAX_PATH_LENGTH])
    try:
        return base64.b64decode(text.partition(",")[2], validate=True)
    except binascii.Error as error:
        raise ValueError(f"the data: URL is not valid base64: {error}") from error


def model_size(processor: Any, width: int, height: int) -> tuple[int, int]:
    """Return the model's (width, height) in pixels for an image: whole merged patches within the processor's limits.

    Missing settings default to those of Qwen2-VL.

    Raises:
        ValueError: one side is more than 200 times the other.
    """
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    smallest, largest = _pixel_limits(processor)
    new_height, new_width = smart_resize(
        height, width, factor=merged_patch(processor), min_pixels=smallest, max_pixels=largest
    )
    return new_width, new_height


def merged_patch(processor: Any) -> int:
    """Return the side length in pixels of the patch that becomes one token."""
    images = getattr(processor, "image_processor", None)
    return getattr(images, "patch_size", DEFAULT_PATCH_SIZE) * getattr(images, "merge_size", DEFAULT_MERGE_SIZE)


def _pixel_limits(processor: Any) -> tuple[int, int]:
    size = getattr(getattr(processor, "image_processor", None), "size", DEFAULT_PIXELS)
    return size["shortest_edge"], size["longest_edge"]


def image_tokens(processor: Any, width: int, height: int) -> int:
    """Return the number of placeholder tokens for an image of this size."""
    side = merged_patch(processor)
    new_width, new_height = model_size(processor, width, height)
    return (new_width // side) * (new_height // side)


def at_model_size(image: Any, processor: Any) -> Any:
    """Return a PIL image as RGB at its `model_size`, with transparent parts white."""
    from PIL import Image

    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        behind = Image.new("RGB", image.size, WHITE)
        behind.paste(image, mask=image)
        image = behind
    image = image.convert("RGB")
    size = model_size(processor, *image.size)
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)


def png_bytes(image: Any) -> bytes:
    """Return a PIL image as a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=PNG_LEVEL)
    return buffer.getvalue()


def png_url(file: bytes) -> str:
    """Return a PNG file as a ``data:`` URL."""
    return "data:image/png;base64," + base64.b64encode(file).decode()


def picture_tensors(processor: Any, images: Sequence[Any]) -> dict[str, Any]:
    """Return ``pixel_values`` [patches, D] and ``image_grid_thw`` [pictures, 3] of images at their `model_size`."""
    made = processor.image_processor(images=list(images), return_tensors="pt")
    return {name: made[name] for name in TENSORS}


def placeholder_ids(processor: Any) -> frozenset[int]:
    """Return the placeholder ids of pictures and videos; empty without a processor."""
    names = ("image_token_id", "video_token_id")
    values = (getattr(processor, name, None) for name in names)
    return frozenset(token for token in values if token is not None)


def repeat_placeholders(ids: Sequence[int], placeholder: int, counts: Sequence[int]) -> list[int]:
    """Return prompt ids in which the ``n``-th placeholder stands ``counts[n]`` times, as the processor writes it.

    Raises:
        ValueError: placeholders and counts differ in number.
    """
    if (total := sum(item == placeholder for item in ids)) != len(counts):
        raise ValueError(f"the chat template rendered {total} placeholders for {len(counts)} pictures")
    times = iter(counts)
    return [item for token in ids for item in [token] * (next(times) if token == placeholder else 1)]


def one_per_image(tokens: Sequence[int], placeholders: frozenset[int]) -> list[int]:
    """Return ``tokens`` with every run of a placeholder collapsed to one, as engines expect ids with images."""
    runs = ((token, list(run)) for token, run in itertools.groupby(tokens))
    return [token for token, run in runs for _ in (run[:1] if token in placeholders else run)]
