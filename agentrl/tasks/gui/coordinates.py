"""From the coordinates that a model writes to the screen's.

* ``relative``: whole numbers from 0 to 999 in both directions, whatever the picture's size, as Qwen3-VL has learned them.
  A number is the middle of its thousandth of the screen.
* ``absolute``: pixels of the screenshot. The model sees it resized to its processor's grid, which the environment does not
  know; the two differ at the far edge by up to half a cell of the grid.
* ``qwen25``: pixels of the picture as Qwen2.5-VL's processor resizes it, to multiples of 28.

Guarantee: a point outside of the screen is an `InvalidError`. Pure.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, get_args

from agentrl.exceptions import InvalidError
from agentrl.tasks.gui.actions import Point

CoordinateType = Literal["relative", "absolute", "qwen25"]
COORDINATE_TYPES: tuple[CoordinateType, ...] = get_args(CoordinateType)
GRID = 1000
QWEN25_FACTOR = 28
QWEN25_PIXELS = (56 * 56, 14 * 14 * 4 * 1280)
"""Fewest and most pixels of the picture, by default, in Qwen2.5-VL's processor."""


@cache
def space(kind: CoordinateType, picture: tuple[int, int]) -> tuple[int, int]:
    """Return the width and height that coordinates of this kind count in, for a picture of this size."""
    if kind == "relative":
        return GRID, GRID
    if kind == "absolute":
        return picture
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    least, most = QWEN25_PIXELS
    height, width = smart_resize(picture[1], picture[0], factor=QWEN25_FACTOR, min_pixels=least, max_pixels=most)
    return width, height


def on_screen(point: Point, kind: CoordinateType, picture: tuple[int, int], screen: tuple[int, int]) -> Point:
    """Return a model's point in pixels of the screen.

    Args:
        point: that the model wrote.
        kind: of its coordinates.
        picture: width and height of the picture that was taken.
        screen: width and height of the screen.

    Raises:
        InvalidError: it is not on the screen.
    """
    columns, rows = space(kind, picture)
    x, y = point
    if not (0 <= x < columns and 0 <= y < rows):
        raise InvalidError(
            f"the point [{x:g}, {y:g}] is not on the screen; x goes from 0 to {columns - 1}, y from 0 to {rows - 1}",
            code="off_screen",
        )
    return (x + 0.5) * screen[0] / columns, (y + 0.5) * screen[1] / rows


def from_screen(point: Point, kind: CoordinateType, picture: tuple[int, int], screen: tuple[int, int]) -> list[int]:
    """Return a point of the screen as a model writes it."""
    columns, rows = space(kind, picture)
    return [min(int(point[0] * columns / screen[0]), columns - 1), min(int(point[1] * rows / screen[1]), rows - 1)]
