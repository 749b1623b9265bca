"""Checkpoints for tests on a GPU; at module level, so that a process of its own can build them."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.trainer_parts.shapes import SHAPES, build

SPREAD = 0.05
"""Standard deviation of the weights: logits of the last layer are then about 1.6 apart."""


def small_qwen(folder: Path) -> Path:
    """Write Qwen3-0.6B's shape with random bfloat16 weights and return its folder."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return build(SHAPES["qwen3-0.6b"], folder, dtype="bfloat16", device=device, initializer_range=SPREAD)
