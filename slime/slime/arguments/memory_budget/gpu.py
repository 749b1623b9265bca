"""A GPU's memory: how much it has and where the figure comes from, and what a process needs on it, part by part.

Guarantees: an explicit size wins. Otherwise the driver is queried, without torch: the smallest visible GPU counts, and of the memory that
other processes hold, that of the GPU with the least left. Without a GPU nothing is guessed, unless the caller names the kind of machine that the plan is for. Each part says whether it is exact or estimated.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from slime.args import Arguments

GIB = 2**30
UNCERTAINTY = 0.2
"""Relative error of an estimated part (activations, logits, graphs, workspace)."""
CONTEXT = 0.6 * GIB
"""A CUDA context with its kernels: 0.5 to 0.8 GiB per process."""
NCCL = 0.5 * GIB
"""NCCL buffers of a process in a group of more than one rank."""
DRIVER = 0.4 * GIB
"""Memory that ``nvidia-smi`` counts but no process can allocate."""


SMI = "nvidia-smi"
"""Source of a size that the driver of this machine tells."""


@dataclass(frozen=True)
class Part:
    """Bytes of one kind; ``exact`` ones follow from the number of parameters or tokens."""

    name: str
    size: float
    exact: bool = False


@dataclass(frozen=True)
class Need:
    """What one process of a role needs on each of its GPUs.

    Attributes:
        role: actor, critic, rollout or judge.
        parts: parts at the peak.
        apart: parts at another moment, shown but not in the sum.
        away: bytes that remain while the role is offloaded.
    """

    role: str
    parts: tuple[Part, ...]
    apart: tuple[Part, ...] = ()
    away: float = CONTEXT

    @property
    def total(self) -> float:
        """Bytes at the peak."""
        return sum(part.size for part in self.parts)

    @property
    def doubt(self) -> float:
        """Uncertainty of :attr:`total` in bytes."""
        return UNCERTAINTY * sum(part.size for part in self.parts if not part.exact)

    def line(self) -> str:
        """Return the parts as text: ``weights 3.2, cache 1.8, (logits 0.9)``; brackets hold :attr:`apart`."""
        shown = [f"{part.name} {part.size / GIB:.1f}" for part in self.parts if part.size]
        return ", ".join([*shown, *(f"({part.name} {part.size / GIB:.1f})" for part in self.apart)])


@dataclass(frozen=True)
class GpuMemory:
    """Bytes of one GPU, and a readable source of the figure.

    Attributes:
        held: bytes that other processes hold. A refusal ignores them, because they may be gone at the start.
    """

    size: float
    source: str
    held: float = 0.0


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
        return result
    return GpuMemory(gib * GIB, f"{machine}; this machine has no GPU") if gib else None


def smallest_gpu(environment: Mapping[str, str]) -> GpuMemory | None:
    """Return the memory of the smallest visible GPU; None without a driver or for MIG partitions.

    A GPU whose use the driver does not tell counts as full.
    """
    command = [SMI, "--query-gpu=index,uuid,memory.total,memory.used", "--format=csv,noheader,nounits"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    if listing.returncode:
        return None
    rows = [[word.strip() for word in line.split(",")] for line in listing.stdout.splitlines() if line.count(",") == 3]
    visible = [word.strip() for word in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    gpus = [
        (int(size), int(used) if used.isdigit() else int(size))
        for index, uuid, size, used in rows
        if size.isdigit() and (not visible or any(word == index or uuid.startswith(word) for word in visible))
    ]
    if not gpus:
        return None
    smallest, left = min(size for size, _ in gpus), min(size - used for size, used in gpus)
    return GpuMemory(smallest * 2**20, SMI, held=(smallest - left) * 2**20)
