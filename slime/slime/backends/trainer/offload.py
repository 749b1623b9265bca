"""Tensors whose device memory is given away for a while (``--offload-train``).

Guarantees: a tensor stays the same object, with its shape, its views and who refers to it; only its storage is emptied, and filled again
with the same bytes, as Megatron-core does with its buffers. So optimizer, FSDP2 and Megatron need not know. The host memory is pinned,
one piece, and kept for the next time. A tensor that is away must not be used, except by :meth:`HostMemory.value`.
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
    """Where its bytes are in the host memory; None: they were all zero."""


class HostMemory:
    """Owns the host memory of one rank, and knows what is away."""

    def __init__(self, device: torch.device) -> None:
        """``device``: whose memory is given away; what is elsewhere stays there."""
        self._device = device
        self._segment: Segment | None = None
        self._away: dict[int, _Away] = {}

    @property
    def is_used(self) -> bool:
        """Whether tensors are away."""
        return bool(self._away)

    def take(self, tensors: Iterable[Tensor], zeros: Iterable[Tensor] = ()) -> int:
        """Give away the memory of ``tensors``, and of ``zeros``, which hold nothing but zeros; return how many bytes.

        Nothing may be away. Where the host has no room for them, everything stays and the error of the allocation is raised.
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
        self._synchronize()  # what other streams still do with them
        for away in leaving.values():
            if away.start is not None:
                host[away.start : away.start + away.size].copy_(_bytes(away.storage), non_blocking=True)
        self._synchronize()
        self._away = leaving
        for away in leaving.values():
            away.storage.resize_(0)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return sum(away.size for away in leaving.values())

    def give_back(self) -> None:
        """Give every tensor its memory and its values back."""
        for away in self._away.values():
            away.storage.resize_(away.size)
            if away.start is None:
                _bytes(away.storage).zero_()
            else:
                _bytes(away.storage).copy_(self._bytes_at(away.start, away.size), non_blocking=True)
        self._synchronize()
        self._away = {}

    def value(self, tensor: Tensor) -> Tensor:
        """Return what ``tensor`` holds, on its device, whether it is away or not; a copy if it is."""
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
        """Let go of the host memory; what is away is lost."""
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
    """Return the memory behind ``tensor``; of this rank's part where it is spread over ranks."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach().untyped_storage()


def _bytes(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
