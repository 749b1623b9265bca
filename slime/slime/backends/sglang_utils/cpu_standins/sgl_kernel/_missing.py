"""A named operator that says what is missing when it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def missing_operator(name: str) -> Callable[..., Any]:
    """Return a function that raises; names with two leading underscores do not exist."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*values: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} needs an accelerator; this is the CPU stand-in")

    missing.__name__ = name
    return missing
