"""Image transforms, by name only; the interpolation modes have their values."""

from enum import Enum
from importlib import import_module

from .._placeholder import placeholder as __getattr__


class InterpolationMode(Enum):
    """Interpolation modes under torchvision's names."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


# Not an import statement: the placeholder would answer for the submodule.
functional = import_module("torchvision.transforms.functional")

__all__ = ["InterpolationMode", "__getattr__", "functional"]
