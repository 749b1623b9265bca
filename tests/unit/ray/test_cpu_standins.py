"""The import stand-ins satisfy what SGLang imports, compute what images of Qwen-VL need, and refuse everything else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

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
import numpy, torch
from PIL import Image
from torchvision.transforms.v2.functional import normalize, pil_to_tensor
image = Image.fromarray(numpy.random.default_rng(0).integers(0, 255, (30, 44, 3), dtype=numpy.uint8))
pixels = pil_to_tensor(image)
assert pixels.shape == (3, 30, 44) and pixels.dtype == torch.uint8
assert pil_to_tensor(image.convert("L")).shape == (1, 30, 44)
assert resize(pixels, (30, 44)) is pixels
for mode, name in ((InterpolationMode.BICUBIC, "BICUBIC"), (InterpolationMode.BILINEAR, "BILINEAR")):
    smaller = resize(pixels[None].expand(2, -1, -1, -1), (17, 23), interpolation=mode, antialias=True)
    expected = numpy.asarray(image.resize((23, 17), Image.Resampling[name])).astype(int)
    assert smaller.shape == (2, 3, 17, 23) and smaller.dtype == torch.uint8
    assert abs(smaller[1].permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1, name
try: resize(pixels, (3, 3), interpolation=InterpolationMode.LANCZOS)
except NotImplementedError as error: assert "real torchvision" in str(error)
else: raise SystemExit("resized")
values = torch.full((2, 3, 1, 1), 4.0)
assert normalize(values, [1.0, 2.0, 4.0], [1.0, 2.0, 4.0])[0].flatten().tolist() == [3.0, 1.0, 0.0]
assert values[0, 0] == 4.0
assert normalize(values, [1.0] * 3, [2.0] * 3, inplace=True) is values and values[0, 0] == 1.5
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
size = {"shortest_edge": 56 * 56, "longest_edge": 112 * 112}
ready = image.resize((84, 56))
ours, theirs = (kind(size=size)(images=[ready], return_tensors="pt") for kind in (Qwen2VLImageProcessor, Qwen2VLImageProcessorPil))
assert ours["image_grid_thw"].tolist() == theirs["image_grid_thw"].tolist()
assert (ours["pixel_values"] - theirs["pixel_values"]).abs().max() < 1e-6
""",
    "sgl_kernel": """
import torch, sgl_kernel
from sgl_kernel import rmsnorm
from sgl_kernel.mamba import causal_conv1d_fwd
assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed")
try: torch.ops.sgl_kernel.fused_sigmoid_mul_cpu(1, 2)
except NotImplementedError as error: assert "fused_sigmoid_mul_cpu" in str(error)
else: raise SystemExit("an operator ran")
assert torch.empty(3, pin_memory=True).pin_memory().shape == (3,)
assert torch.cuda.cudart().cudaHostRegister(64, 8, 0) == torch.cuda.cudart().cudaHostUnregister(64) == 0
assert not hasattr(torch.cuda.cudart(), "cudaProfilerStart")
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
