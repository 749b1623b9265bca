"""How much memory a GPU of this run has, and where the figure comes from.

Guarantee: an explicit value wins. Otherwise the driver is queried, without torch, and the smallest visible GPU counts.
Without a GPU nothing is guessed, unless the caller names the kind of machine that the plan is for.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from slime.args import Arguments
from slime.arguments.memory_budget.parts import GIB


@dataclass(frozen=True)
class GpuMemory:
    """Bytes of one GPU, and a readable source of the figure."""

    size: float
    source: str


def gpu_memory(args: Arguments, machine: str | None = None, gib: float | None = None) -> GpuMemory | None:
    """Return the memory of the run's GPUs; None on a CPU or if unknown.

    Args:
        args: arguments of the run; ``gpu_memory_gb`` wins.
        machine: the kind of machine that ``gib`` describes, used without a local GPU.
        gib: memory of a GPU of that kind.
    """
    if args.device != "cuda":
        return None
    if args.gpu_memory_gb:
        return GpuMemory(args.gpu_memory_gb * GIB, "--gpu-memory-gb")
    if (result := smallest_gpu(os.environ)) is not None:
        return GpuMemory(result, "nvidia-smi")
    return GpuMemory(gib * GIB, f"{machine}; this machine has no GPU") if gib else None


def smallest_gpu(environment: Mapping[str, str]) -> float | None:
    """Return the bytes of the smallest visible GPU; None without a driver or for MIG partitions."""
    command = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    if listing.returncode:
        return None
    rows = [[word.strip() for word in line.split(",")] for line in listing.stdout.splitlines() if line.count(",") == 2]
    visible = [word.strip() for word in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    sizes = [
        float(size) * 2**20
        for index, uuid, size in rows
        if size.isdigit() and (not visible or any(word == index or uuid.startswith(word) for word in visible))
    ]
    return min(sizes, default=None)
