"""How much memory a GPU of this run has, and who says so.

Guarantee: what was given by hand wins; else the driver is asked, without torch, and the smallest GPU that the run may see
counts; where there is no GPU nothing is guessed, unless the caller knows what kind of machine the plan is for.
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
    """Bytes of one GPU, and the source for people."""

    size: float
    source: str


def gpu_memory(args: Arguments, machine: str | None = None, gib: float | None = None) -> GpuMemory | None:
    """Return the memory of the run's GPUs; None on a CPU, and where nobody knows.

    Args:
        args: of the run; ``gpu_memory_gb`` wins.
        machine: the kind of machine that ``gib`` is for, used where there is no GPU.
        gib: memory of a GPU of that kind.
    """
    if args.device != "cuda":
        return None
    if args.gpu_memory_gb:
        return GpuMemory(args.gpu_memory_gb * GIB, "--gpu-memory-gb")
    if (found := smallest_gpu(os.environ)) is not None:
        return GpuMemory(found, "nvidia-smi")
    return GpuMemory(gib * GIB, f"{machine}; this machine has no GPU") if gib else None


def smallest_gpu(environment: Mapping[str, str]) -> float | None:
    """Return the bytes of the smallest GPU that ``CUDA_VISIBLE_DEVICES`` leaves; None without a driver or for parts of GPUs (MIG)."""
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
