"""Operators that SGLang takes from ``torch.ops.sgl_kernel`` while it imports the Qwen-VL models."""

from __future__ import annotations

import torch

from ._missing import missing_operator

# Only these: SGLang looks at which others exist to choose between two ways that both work.
TAKEN_AT_IMPORT = (
    "fused_sigmoid_mul_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
)


def register_placeholders() -> None:
    """Give ``torch.ops.sgl_kernel`` the names, each of which raises when it is called."""
    for name in TAKEN_AT_IMPORT:
        setattr(torch.ops.sgl_kernel, name, missing_operator(name))
