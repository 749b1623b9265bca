"""The walk's Triton kernels: their mathematics in Triton's interpreter, and their compilation for GPUs, neither of which needs one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.locks import read_lock

REPOSITORY = Path(__file__).resolve().parents[2]
SETUP = REPOSITORY / "scripts" / "setup_triton.sh"
TRITON = REPOSITORY / ".cache" / "triton" / "lib"


def run(folder: Path, *words: str, **variables: str) -> None:
    """Run a Python program that finds Triton, and show what it said if it fails."""
    assert subprocess.run([SETUP, "--check"], check=False).returncode == 0, "run bash scripts/setup_triton.sh"
    paths = os.pathsep.join(map(str, (TRITON, REPOSITORY, REPOSITORY / "slime")))
    environment = {**os.environ, "PYTHONPATH": paths, "TRITON_CACHE_DIR": str(folder), **variables}
    done = subprocess.run(
        [sys.executable, *words], env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"


@pytest.mark.timeout(600)
def test_the_interpreter_agrees_with_float64_and_the_walk_of_torch(tmp_path: Path) -> None:
    cases = "tests/helpers/walk_kernel_cases.py"
    run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", cases, TRITON_INTERPRET="1")


@pytest.mark.timeout(600)
def test_the_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    """For an A100 and an H100, without registers that spill into memory."""
    run(tmp_path, "-m", "tests.helpers.compiled_walk_kernels")


def test_triton_is_that_of_the_gpu_lock() -> None:
    """What is tested here is the release that a GPU runs."""
    apart, of_gpus = (
        read_lock((REPOSITORY / f"requirements/{name}.txt").read_text(), (3, 11)) for name in ("triton", "gpu")
    )
    assert apart["triton"] == of_gpus["triton"]
