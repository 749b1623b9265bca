"""Transforms of the second generation, by name only."""

from importlib import import_module

from torchvision._placeholder import placeholder as __getattr__
from torchvision.transforms import InterpolationMode

# Not an import statement: the placeholder would answer for the submodule.
functional = import_module("torchvision.transforms.v2.functional")

__all__ = ["InterpolationMode", "__getattr__", "functional"]
