"""Layers by Liger-Kernel in Triton's interpreter, which needs no GPU: values, gradients, and what they save."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.locks import read_lock
from tests.integration.test_walk_kernels import REPOSITORY, run


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_interpreter_agrees_with_float64(tmp_path: Path) -> None:
    cases = "tests/helpers/liger_cases.py"
    run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", cases, TRITON_INTERPRET="1")


def test_liger_is_that_of_a_gpu() -> None:
    """What is tested here is the release that a GPU runs."""
    apart, of_gpus = (
        read_lock((REPOSITORY / f"requirements/{name}.txt").read_text(), "3.11") for name in ("triton", "liger")
    )
    assert of_gpus == {"liger-kernel": apart["liger-kernel"]}
