"""Operators that say what is missing when they are called, by import and under ``torch.ops.sgl_kernel``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# SGLang takes these from torch.ops while it imports the Qwen-VL models. Only these: it looks at which others exist to
# choose between two ways that both work.
TAKEN_AT_IMPORT = (
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
)


def missing_operator(name: str) -> Callable[..., Any]:
    """Return a function that raises; names with two leading underscores do not exist."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*values: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} needs an accelerator; this is the CPU stand-in")

    missing.__name__ = name
    return missing


def register_placeholders() -> None:
    """Give ``torch.ops.sgl_kernel`` the names, each of which raises when it is called."""
    for name in TAKEN_AT_IMPORT:
        setattr(torch.ops.sgl_kernel, name, missing_operator(name))
