"""The import stand-ins satisfy what SGLang imports and refuse to compute anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = {
    "triton": """
import triton, triton.language as tl
from triton.language.extra import libdevice
from triton.runtime.cache import FileCacheManager
from triton.language import core
assert triton.cdiv(7, 3) == 3 and triton.next_power_of_2(5) == 8
assert core.constexpr is tl.constexpr
@triton.autotune(configs=[triton.Config({"B": 1}, num_warps=4)], key=["n"])
@triton.jit
def kernel(x, n: tl.constexpr): ...
@triton.jit(do_not_specialize=["n"])
def other(x, n): ...
class Mine(FileCacheManager): ...
for declared in (kernel, other):
    try: declared[(1,)](None, 1)
    except NotImplementedError as error: assert "accelerator" in str(error)
    else: raise SystemExit("a kernel ran")
""",
    "torchvision": """
import torchvision
from torchvision.io import decode_jpeg
from torchvision.transforms import Compose, InterpolationMode
from torchvision.transforms.functional import resize
from torchvision.transforms.v2 import functional, Normalize
assert InterpolationMode("bicubic") is InterpolationMode.BICUBIC
assert functional.InterpolationMode is InterpolationMode
""",
    "sgl_kernel": """
import torch, sgl_kernel
from sgl_kernel import rmsnorm
from sgl_kernel.mamba import causal_conv1d_fwd
assert torch.empty(3, pin_memory=True).pin_memory().shape == (3,)
for operator in (rmsnorm, causal_conv1d_fwd):
    try: operator(1)
    except NotImplementedError as error: assert operator.__name__ in str(error)
    else: raise SystemExit("an operator ran")
""",
}


@pytest.mark.parametrize("package", sorted(CHECKS))
def test_standin(package: str, repository: Path) -> None:
    standins = repository / "slime/slime/backends/sglang_utils/cpu_standins"
    check = f"import {package}\nassert {package}.__file__.startswith({str(standins)!r})\n{CHECKS[package]}"
    run = subprocess.run(
        [sys.executable, "-c", check],
        env={**os.environ, "PYTHONPATH": str(standins)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
