"""Random pictures, the same for the same size."""

from __future__ import annotations

import io

import numpy
from PIL import Image


def picture(width: int = 24, height: int = 16, mode: str = "RGB") -> Image.Image:
    """Return a picture of random pixels."""
    shape = (height, width, len(mode)) if len(mode) > 1 else (height, width)
    return Image.fromarray(numpy.random.default_rng(1).integers(0, 255, shape, dtype=numpy.uint8))


def png(image: Image.Image) -> bytes:
    """Return the content of a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
