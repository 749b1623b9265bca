"""Functional transforms: those of Qwen-VL's image processor compute, the others are names only."""

from torchvision._placeholder import placeholder as __getattr__
from torchvision._tensors import normalize, pil_to_tensor, resize
from torchvision.transforms import InterpolationMode

__all__ = ["InterpolationMode", "__getattr__", "normalize", "pil_to_tensor", "resize"]
