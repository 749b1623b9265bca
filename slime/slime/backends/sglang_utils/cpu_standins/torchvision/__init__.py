"""torchvision without its operators: importable, and the image operations of Qwen-VL compute on the CPU."""

from . import io, transforms

__version__ = "0.0.0"
__all__ = ["io", "transforms"]
