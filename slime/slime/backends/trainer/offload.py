"""Tensors whose device memory is released for a while (``--offload-train``).

Guarantees: a tensor stays the same object, with its shape, views and references; only its storage is emptied and later
filled with the same bytes, as Megatron-core does with its buffers. So optimizer, FSDP2 and Megatron need not know. The
host memory is pinned, one block, and kept for the next time. An offloaded tensor must not be used, except through
:meth:`HostMemory.value`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from slime.weight_sync.segments import Segment

ALIGNMENT = 512
"""Bytes; a multiple of the size of every element."""


@dataclass(frozen=True)
class _Away:
    storage: torch.UntypedStorage
    size: int
    start: int | None
    """Offset of its bytes in host memory; None: they were all zero."""


class HostMemory:
    """Owns one rank's host memory, and tracks the offloaded tensors."""

    def __init__(self, device: torch.device) -> None:
        """``device``: device whose memory is released; other tensors stay in place."""
        self._device = device
        self._segment: Segment | None = None
        self._away: dict[int, _Away] = {}

    @property
    def is_used(self) -> bool:
        """Return whether tensors are offloaded."""
        return bool(self._away)

    def take(self, tensors: Iterable[Tensor], zeros: Iterable[Tensor] = ()) -> int:
        """Release the memory of ``tensors``, and of ``zeros``, which are all zero; return the number of bytes.

        Nothing may be offloaded before. If the host lacks memory, nothing moves and the allocation error is raised.
        """
        gc.collect()
        empty = {storage._cdata: storage for storage in map(storage_of, zeros) if self._takes(storage)}
        full = {storage._cdata: storage for storage in map(storage_of, tensors) if self._takes(storage)}
        leaving: dict[int, _Away] = {}
        total = 0
        for key, storage in full.items():
            if key not in empty:
                leaving[key] = _Away(storage, storage.nbytes(), total)
                total += -(-storage.nbytes() // ALIGNMENT) * ALIGNMENT
        leaving |= {key: _Away(storage, storage.nbytes(), None) for key, storage in empty.items()}
        host = self._room(total)
        self._synchronize()  # other streams may still use them
        for away in leaving.values():
            if away.start is not None:
                host[away.start : away.start + away.size].copy_(bytes_of(away.storage), non_blocking=True)
        self._synchronize()
        self._away = leaving
        for away in leaving.values():
            away.storage.resize_(0)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return sum(away.size for away in leaving.values())

    def give_back(self) -> None:
        """Restore the memory and values of every tensor."""
        for away in self._away.values():
            away.storage.resize_(away.size)
            if away.start is None:
                bytes_of(away.storage).zero_()
            else:
                bytes_of(away.storage).copy_(self._bytes_at(away.start, away.size), non_blocking=True)
        self._synchronize()
        self._away = {}

    def value(self, tensor: Tensor) -> Tensor:
        """Return the values of ``tensor`` on its device; a copy if it is offloaded."""
        tensor = tensor.detach()
        if not self._away:
            return tensor
        if not isinstance(tensor, DTensor):
            return self._value(tensor)
        local = self._value(tensor.to_local())
        return DTensor.from_local(
            local, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
        )

    def close(self) -> None:
        """Free the host memory; offloaded values are lost."""
        if self._segment is not None:
            self._segment.close()
        self._segment, self._away = None, {}

    def _value(self, tensor: Tensor) -> Tensor:
        away = self._away.get(tensor.untyped_storage()._cdata)
        if away is None:
            return tensor
        if away.start is None:
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device=self._device)
        host = torch.empty(0, dtype=tensor.dtype)
        start = away.start // tensor.element_size() + tensor.storage_offset()
        host.set_(self._host().untyped_storage(), start, tensor.size(), tensor.stride())
        return host.to(self._device, copy=True)

    def _takes(self, storage: torch.UntypedStorage) -> bool:
        return storage.device == self._device and storage.nbytes() > 0

    def _room(self, size: int) -> Tensor:
        if self._segment is None or self._segment.data.numel() < size:
            if self._segment is not None:
                self._segment.close()
                self._segment = None
            self._segment = Segment(max(size, ALIGNMENT), pinned=self._device.type == "cuda")
        return self._segment.data

    def _host(self) -> Tensor:
        assert self._segment is not None
        return self._segment.data

    def _bytes_at(self, start: int, size: int) -> Tensor:
        return self._host()[start : start + size]

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def storage_of(tensor: Tensor) -> torch.UntypedStorage:
    """Return the storage of ``tensor``, or of this rank's part if it is sharded."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach().untyped_storage()


def bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
