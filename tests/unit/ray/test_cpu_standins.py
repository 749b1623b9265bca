"""The import stand-ins satisfy what SGLang imports and refuse to compute anything."""

from __future__ import annotations

import json
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


# One process makes all the checks, because each needs torch; it says what went wrong with which.
ALL = """
import json, os, sys, traceback
standins, checks = os.environ["PYTHONPATH"], json.load(sys.stdin)
problems = {}
for package, check in checks.items():
    try:
        exec(f"import {package}\\nassert {package}.__file__.startswith({standins!r})\\n{check}", {})
    except BaseException:
        problems[package] = traceback.format_exc()
print(json.dumps(problems))
"""


@pytest.fixture(scope="module")
def problems(repository: Path) -> dict[str, str]:
    """Per package that fails its check the traceback."""
    standins = repository / "slime/slime/backends/sglang_utils/cpu_standins"
    run = subprocess.run(
        [sys.executable, "-c", ALL],
        env={**os.environ, "PYTHONPATH": str(standins)},
        input=json.dumps(CHECKS),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(run.stdout)


@pytest.mark.parametrize("package", sorted(CHECKS))
def test_standin(package: str, problems: dict[str, str]) -> None:
    assert package not in problems, problems[package]
