"""Image and video readers, by name only."""

from ._placeholder import placeholder as __getattr__

__all__ = ["__getattr__"]
