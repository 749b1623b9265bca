"""Memory that other processes of this machine can map, and that disappears with its owner.

It has no name in a file system (``memfd``): others open it as a file of the owner in ``/proc``, so a killed trainer leaves
nothing behind and the size of ``/dev/shm`` does not matter.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from groundwork.exceptions import ConfigError
from groundwork.machine import this_host

HUGE_PAGE = 2 << 20


class Segment:
    """Owned memory; ``data`` are its bytes."""

    def __init__(self, size: int, *, pinned: bool = False) -> None:
        """``pinned``: a GPU accesses it without an intermediate copy."""
        size = -(-size // HUGE_PAGE) * HUGE_PAGE
        self._file = os.memfd_create("slime-weights")
        os.ftruncate(self._file, size)
        self.data = _map(self._file, size, write=True)
        self._pinned = pinned
        if pinned:
            pin(self.data)

    def source(self, size: int) -> dict[str, Any]:
        """Return the location of the first ``size`` bytes for another process."""
        return {"path": f"/proc/{os.getpid()}/fd/{self._file}", "inode": os.fstat(self._file).st_ino, "size": size}

    def close(self) -> None:
        """Release the memory; processes that mapped it keep it."""
        if self._pinned:
            unpin(self.data)
        self.data = torch.empty(0, dtype=torch.uint8)
        os.close(self._file)


class Mappings:
    """Other processes' segments in this one; each is mapped once, and the ``limit`` most recent are kept."""

    def __init__(self, limit: int = 2) -> None:
        self._limit = limit
        self._open: dict[tuple[str, int], Tensor] = {}

    def bytes_of(self, source: dict[str, Any]) -> Tensor:
        """Return the bytes at ``source``, read-only.

        Raises:
            OSError: the owner is gone, or on another machine.
        """
        key = (source["path"], source["inode"])
        data = self._open.pop(key, None)
        if data is None:
            file = os.open(source["path"], os.O_RDONLY)
            try:
                status = os.fstat(file)
                if status.st_ino != source["inode"]:
                    raise FileNotFoundError(f"{source['path']} is another file by now")
                data = _map(file, status.st_size, write=False)
            finally:
                os.close(file)
        self._open[key] = data
        while len(self._open) > self._limit:
            self._open.pop(next(iter(self._open)))
        return data[: source["size"]]


def _map(file: int, size: int, *, write: bool) -> Tensor:
    access = mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
    memory = mmap.mmap(file, size, flags=mmap.MAP_SHARED, prot=access)
    with contextlib.suppress(OSError):  # without large pages it is only slower
        memory.madvise(mmap.MADV_HUGEPAGE)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(memory, dtype=torch.uint8)


def pin(data: Tensor) -> None:
    """Register host memory with CUDA."""
    runtime: Any = torch.cuda.cudart()
    torch.cuda.check_error(runtime.cudaHostRegister(data.data_ptr(), data.numel(), 0))


def unpin(data: Tensor) -> None:
    """Undo :func:`pin`."""
    runtime: Any = torch.cuda.cudart()
    torch.cuda.check_error(runtime.cudaHostUnregister(data.data_ptr()))


def check_same_host(hosts: Sequence[Sequence[str]]) -> None:
    """Compare the machines of each policy engine, in order, with this process's.

    Raises:
        ConfigError: an engine cannot share memory with this process.
    """
    here = this_host()
    for position, machines in enumerate(hosts):
        if set(machines) != {here}:
            raise ConfigError(
                f"policy engine {position} is not on the machine of training rank 0; use --update-weight-transport nccl"
            )
