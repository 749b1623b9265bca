"""Functional transforms, by name only."""

from torchvision._placeholder import placeholder as __getattr__
from torchvision.transforms import InterpolationMode

__all__ = ["InterpolationMode", "__getattr__"]
