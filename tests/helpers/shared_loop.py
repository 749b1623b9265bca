"""A whole run whose trainer and engine share a device, as users start it: one body for a CPU and for a GPU.

The CPU's run is `tests/integration/test_colocate_run.py`, that on a GPU `tests/gpu/test_share_gpu.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.testkit.logged import logged_records
from tests.helpers.driver import Driver

ROLLOUTS = 2
CHECKED = ("--num-rollout", str(ROLLOUTS), "--check-weight-update-equal")
ON_A_GPU = (
    *("--device", "cuda", "--share-gpu", "--num-gpus", "1", "--train-dtype", "bfloat16"),
    *("--update-weight-mode", "full", "--update-weight-transport", "shared", "--gradient-checkpointing"),
    *("--sglang-mem-fraction-static", "0.3", "--sglang-max-total-tokens", "40000", "--sglang-context-length", "4096"),
    *("--sglang-cuda-graph-max-bs-decode", "8", "--max-tokens-per-gpu", "4096", "--lr", "1e-4"),
)
"""Flags that make `Driver`'s run one on a single GPU, whole weights by CUDA IPC."""


def run_shared(repository: Path, run_dir: Path, model: Path, *flags: str, script: str) -> Driver:
    """Run `ROLLOUTS` rollouts with checked pushes to the end; each must be sampled by the weights of the step before it."""
    driver = Driver(repository, run_dir, model, *CHECKED, *flags, script=script)
    driver.run_to_end()
    driver.assert_on_policy(ROLLOUTS)
    return driver


def logged(run_dir: Path, name: str) -> list[Any]:
    """Return the values of the metric ``name`` that a run has logged, in order."""
    rows = logged_records(run_dir)
    return [row[name] for row in rows if name in row]
