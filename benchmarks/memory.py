"""Peak memory of this process, on a CPU its resident memory and on CUDA the allocator's.

Guarantee: imports torch only to ask CUDA; a peak counts from the last :func:`reset_peak`.
"""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path
from typing import Any

# glibc: blocks of this size get pages of their own, so that a freed tensor leaves the resident memory at once.
_MALLOPT_MMAP_THRESHOLD = -3
_MAPPED_BYTES = 2**18


def give_back_freed_blocks(device: Any = None) -> None:
    """Let every large tensor that is freed leave the resident memory at once; slower, for measuring memory only.

    What CUDA's allocator keeps of freed tensors on ``device`` goes back to the device, once.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(_MALLOPT_MMAP_THRESHOLD, _MAPPED_BYTES)
    gc.collect()
    libc.malloc_trim(0)
    if device is not None and device.type == "cuda":
        import torch

        torch.cuda.empty_cache()


def reset_peak(device: Any) -> int:
    """Start a new peak on the torch device ``device`` and return the bytes in use."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak(device: Any) -> int:
    """The largest number of bytes in use since :func:`reset_peak`."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    return _status("VmHWM")


def totals(device: Any) -> dict[str, int]:
    """What the allocator of CUDA gave out and took from the device at most since :func:`reset_peak`; nothing on a CPU."""
    if device.type != "cuda":
        return {}
    import torch

    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(device),
        "reserved_bytes": torch.cuda.max_memory_reserved(device),
    }


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")
