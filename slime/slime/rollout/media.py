"""What a processor made of the images of a sample, as it travels to the training ranks: NumPy arrays, checked here.

Pure. Ray's object store takes NumPy arrays without a copy and torch tensors slowly.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slime.rollout.train_data_checks import TrainDataError
from slime.utils.types import GRID, IMAGES, PIXELS, Sample

logger = logging.getLogger(__name__)

# Outputs of processors that say where the images are among the tokens; the trainer finds that in the tokens.
_OF_TOKENS = ("mm_token_type_ids", "token_type_ids")
CLAUSE = "convert-9"


def image_arrays(name: str, inputs: Mapping[str, Any] | None) -> dict[str, np.ndarray] | None:
    """Return ``{"pixel_values": [patches, D] float32, "image_grid_thw": [images, 3] int64}`` of a sample; None without images.

    Args:
        name: of the sample, for errors.
        inputs: its ``multimodal_train_inputs``, in torch or NumPy.

    Raises:
        TrainDataError: for videos, unknown entries, and patches that do not fit the grids.
    """
    inputs = {key: value for key, value in (inputs or {}).items() if key not in _OF_TOKENS and value is not None}
    if not inputs:
        return None
    unknown = sorted(set(inputs) - {PIXELS, GRID})
    if unknown:
        raise TrainDataError(
            CLAUSE,
            f"{name}: multimodal_train_inputs has {', '.join(unknown)}; only images ({PIXELS}, {GRID}) are trained on",
        )
    missing = sorted({PIXELS, GRID} - set(inputs))
    if missing:
        raise TrainDataError(CLAUSE, f"{name}: multimodal_train_inputs has no {missing[0]}")
    pixels, grids = _array(inputs[PIXELS], np.float32), _array(inputs[GRID], np.int64)
    if pixels.ndim != 2 or grids.ndim != 2 or grids.shape[1] != 3:
        shapes = f"{PIXELS} {list(pixels.shape)} and {GRID} {list(grids.shape)}"
        raise TrainDataError(CLAUSE, f"{name}: {shapes} are not [patches, D] and [images, 3]")
    patches = sum(math.prod(grid) for grid in grids.tolist())
    if patches != len(pixels):
        raise TrainDataError(CLAUSE, f"{name}: {GRID} says {patches} patches, {PIXELS} has {len(pixels)}")
    return {PIXELS: pixels, GRID: grids} if len(grids) else None


def _array(values: Any, dtype: Any) -> np.ndarray:
    """An array of an array, of lists, or of a torch tensor of any precision on any device."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if dtype is np.float32 else values
    return np.asarray(values, dtype=dtype)


def image_fields(samples: Sequence[Sample]) -> dict[str, list[dict[str, np.ndarray] | None]]:
    """Return the field ``multimodal_train_inputs`` of training data; empty when no sample has images.

    Samples that share a processor's outputs share the arrays, which then cross Ray once per rank.

    Raises:
        TrainDataError: also when samples were answered with images and none kept what a processor made of them.
    """
    made: dict[tuple[Any, ...], dict[str, np.ndarray] | None] = {}
    arrays = []
    for sample in samples:
        key = tuple((name, id(value)) for name, value in (sample.multimodal_train_inputs or {}).items())
        if key not in made:
            made[key] = image_arrays(f"sample {sample.index}", sample.multimodal_train_inputs)
        arrays.append(made[key])
    if any(value is not None for value in arrays):
        return {IMAGES: arrays}
    lost = [sample.index for sample in samples if _has_media(sample)]
    if lost:
        raise TrainDataError(
            CLAUSE, f"sample {lost[0]}: multimodal_inputs has images, and no sample has multimodal_train_inputs"
        )
    return {}


def mask_lost_images(samples: Sequence[Sample], fields: Mapping[str, Sequence[Any]], masks: list[list[int]]) -> None:
    """Zero the masks of samples that were answered with images and came without the processor's arrays.

    What they lack cannot be made up for. A sample of text alone lacks nothing and is trained on.
    """
    lost = [place for place, value in enumerate(fields.get(IMAGES, ())) if value is None and _has_media(samples[place])]
    for place in lost:
        masks[place] = [0] * len(masks[place])
    if lost:
        logger.warning("%d of %d samples had images and lost them; they are not trained on", len(lost), len(samples))


def _has_media(sample: Sample) -> bool:
    return any(bool(value) for value in (sample.multimodal_inputs or {}).values())
