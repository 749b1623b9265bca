"""The images of the samples of a micro-batch, joined for one pass of a vision tower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slime.utils.types import GRID, PIXELS

SampleImages = dict[str, Tensor]


@dataclass(frozen=True)
class Images:
    """Present in every micro-batch of a rollout that has an image anywhere, so that all ranks run the tower or none does.

    Attributes:
        pixels: ``[patches, D]`` of all images, sample after sample; None when no sample of this micro-batch has one.
        grids: ``[images, 3]`` of each sample on the CPU: frames, rows and columns of patches.
        tokens: the token ids of each sample.
    """

    pixels: Tensor | None
    grids: list[Tensor]
    tokens: list[list[int]]


def join(tokens: Sequence[Sequence[int]], images: Sequence[SampleImages | None], device: torch.device) -> Images:
    """Return the images of samples, of which some may have none."""
    pixels = [sample[PIXELS] for sample in images if sample]
    return Images(
        pixels=torch.cat(pixels).to(device) if pixels else None,
        grids=[sample[GRID] if sample else torch.empty(0, 3, dtype=torch.int64) for sample in images],
        tokens=[list(ids) for ids in tokens],
    )
