"""The image operations of torchvision that Qwen-VL's image processor calls, computed with torch on the CPU.

Guarantee: argument names, shapes and rounding are torchvision's for tensors ``[..., channels, height, width]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy
import torch
from torch.nn.functional import interpolate

from .transforms import InterpolationMode

if TYPE_CHECKING:
    from PIL.Image import Image

ANTIALIASED = (InterpolationMode.BILINEAR, InterpolationMode.BICUBIC)


def pil_to_tensor(pic: Image) -> torch.Tensor:
    """Return a PIL image as uint8 ``[channels, height, width]``."""
    pixels = torch.from_numpy(numpy.array(pic, copy=True))
    return pixels.permute(2, 0, 1) if pixels.ndim == 3 else pixels.unsqueeze(0)


def resize(
    image: torch.Tensor,
    size: Sequence[int],
    interpolation: InterpolationMode = InterpolationMode.BILINEAR,
    antialias: bool | None = True,
) -> torch.Tensor:
    """Return ``image`` at ``(height, width)``; of integers the result is rounded and stays in their range.

    Raises:
        NotImplementedError: for other modes than nearest, bilinear and bicubic.
    """
    height, width = size
    if image.shape[-2:] == (height, width):
        return image
    if interpolation not in (*ANTIALIASED, InterpolationMode.NEAREST, InterpolationMode.NEAREST_EXACT):
        raise NotImplementedError(f"resize with {interpolation.value} needs the real torchvision")
    smooth = interpolation in ANTIALIASED
    options = {"align_corners": False, "antialias": bool(antialias)} if smooth else {}
    planes = image.reshape(-1, *image.shape[-3:])
    planes = interpolate(
        planes if image.is_floating_point() else planes.float(), (height, width), mode=interpolation.value, **options
    )
    if not image.is_floating_point():
        limits = torch.iinfo(image.dtype)
        planes = planes.round().clamp(limits.min, limits.max).to(image.dtype)
    return planes.reshape(*image.shape[:-2], height, width)


def normalize(image: torch.Tensor, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> torch.Tensor:
    """Return ``(image - mean) / std`` per channel; ``inplace`` writes it into ``image``."""
    shift, scale = (torch.as_tensor(values, dtype=image.dtype).view(-1, 1, 1) for values in (mean, std))
    target = image if inplace else image.clone()
    return target.sub_(shift).div_(scale)
