"""Import-only torchvision: text models never call it."""

from . import io, transforms

__version__ = "0.0.0"
__all__ = ["io", "transforms"]
