"""A processor's image outputs as they travel to the training ranks: checked NumPy arrays.

Pure. NumPy, because Ray's object store shares NumPy arrays without a copy but is slow with torch tensors.
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

# Processor outputs with the images' token positions; the trainer derives them from the tokens.
_OF_TOKENS = ("mm_token_type_ids", "token_type_ids")
CLAUSE = "convert-9"


def image_arrays(name: str, inputs: Mapping[str, Any] | None) -> dict[str, np.ndarray] | None:
    """Return ``{"pixel_values": [patches, D] float32, "image_grid_thw": [images, 3] int64}`` of a sample; None without images.

    Args:
        name: name of the sample, for errors.
        inputs: its ``multimodal_train_inputs``, in torch or NumPy.

    Raises:
        TrainDataError: there are videos or unknown entries, or the patches do not fit the grids.
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
    """Return an array from an array, lists, or a torch tensor of any precision on any device."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if dtype is np.float32 else values
    return np.asarray(values, dtype=dtype)


def image_fields(samples: Sequence[Sample]) -> dict[str, list[dict[str, np.ndarray] | None]]:
    """Return the field ``multimodal_train_inputs`` of training data; empty if no sample has images.

    Samples that share a processor's outputs share the arrays, so that Ray sends them once per rank.

    Raises:
        TrainDataError: the arrays are invalid, or samples with images all lack the processor's outputs.
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
            CLAUSE, f"sample {lost[0]}: multimodal_inputs has images, but no sample has multimodal_train_inputs"
        )
    return {}


def mask_lost_images(samples: Sequence[Sample], fields: Mapping[str, Sequence[Any]], masks: list[list[int]]) -> None:
    """Zero the masks of samples with images that lack the processor's arrays.

    The arrays cannot be recomputed here. Text-only samples lack nothing and are trained on.
    """
    lost = [place for place, value in enumerate(fields.get(IMAGES, ())) if value is None and _has_media(samples[place])]
    for place in lost:
        masks[place] = [0] * len(masks[place])
    if lost:
        logger.warning(
            "%d of %d samples had images but lack multimodal_train_inputs; they are not trained on",
            len(lost),
            len(samples),
        )


def _has_media(sample: Sample) -> bool:
    return any(bool(value) for value in (sample.multimodal_inputs or {}).values())
