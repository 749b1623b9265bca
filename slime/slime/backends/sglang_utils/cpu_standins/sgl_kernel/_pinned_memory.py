"""Makes ``pin_memory`` a no-op where no accelerator exists."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_FACTORIES = ("tensor", "empty", "zeros", "ones", "full", "empty_like", "zeros_like", "arange")


def ignore_pinning() -> None:
    """Let tensor factories and ``Tensor.pin_memory`` ignore the request; does nothing twice, or with CUDA."""
    if torch.cuda.is_available() or getattr(torch.empty, "_ignores_pinning", False):
        return
    for name in _FACTORIES:
        setattr(torch, name, _without_pinning(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self


def _without_pinning(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    wrapper._ignores_pinning = True
    return wrapper
