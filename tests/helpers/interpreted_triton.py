"""Triton's interpreter for kernels of others: what it lacks, and compiled kernels have. Import it before them, under TRITON_INTERPRET=1."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_implicit_cvt = interpreter._implicit_cvt


def _with_floats(argument: Any) -> Any:
    """Return a kernel's argument as the interpreter has it; a float as a float32 scalar, as on a GPU."""
    if isinstance(argument, float):
        return tl.tensor(interpreter.TensorHandle(np.array([argument], dtype=np.float32), tl.float32), tl.float32)
    return _implicit_cvt(argument)


interpreter._implicit_cvt = _with_floats


def reciprocal_root(x: Any) -> Any:
    """Stand in for CUDA's library function ``rsqrt``, which the interpreter cannot call."""
    return tl.math.rsqrt(x)
