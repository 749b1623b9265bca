"""Makes ``pin_memory`` and CUDA's registration of host memory no-ops where no accelerator exists."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_FACTORIES = ("tensor", "empty", "zeros", "ones", "full", "empty_like", "zeros_like", "arange")


def ignore_pinning() -> None:
    """Let tensor factories, ``Tensor.pin_memory`` and registration ignore the request; does nothing twice, or with CUDA."""
    if torch.cuda.is_available() or getattr(torch.empty, "_ignores_pinning", False):
        return
    for name in _FACTORIES:
        setattr(torch, name, _without_pinning(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *values, **kwargs: self
    torch.cuda.cudart = _NoRuntime


class _NoRuntime:
    """What of CUDA's runtime SGLang calls for the experts that requests report; both answer success."""

    @staticmethod
    def cudaHostRegister(pointer: int, size: int, flags: int) -> int:
        return 0

    @staticmethod
    def cudaHostUnregister(pointer: int) -> int:
        return 0


def _without_pinning(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def wrapper(*values: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        return factory(*values, **kwargs)

    wrapper._ignores_pinning = True
    return wrapper
