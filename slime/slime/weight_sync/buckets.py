"""Weights as flat byte buckets: one buffer, used again for each bucket.

A bucket is the concatenation of its tensors' bytes, in order, as SGLang's ``flattened_bucket`` format reads them. A bucket is
valid until the next one is taken; a tensor larger than the buffer gets a bucket of its own size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Bucket:
    """Flat bytes and what is in them; ``is_last`` on the last bucket of the weights."""

    data: Tensor
    is_last: bool
    names: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)


class BucketBuffer:
    """Owns the buffer of one rank."""

    def __init__(self, capacity: int, device: torch.device, room: Callable[[int], Tensor] | None = None) -> None:
        """``capacity``: bytes of a bucket; ``room``: gives the memory for the next bucket, by default always the same."""
        if capacity <= 0:
            raise ValueError(f"--update-weight-buffer-size is {capacity}; it must be a positive number of bytes")
        self._capacity = capacity
        self._device = device
        self._data = torch.empty(0, dtype=torch.uint8, device=device)
        self._room = room or self._same_room

    def fill(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[Bucket]:
        """Yield the buckets of ``weights``, which must have one dtype, so that no tensor is misaligned."""
        waiting: list[tuple[str, Tensor]] = []
        size = 0
        for name, tensor in weights:
            if waiting and size + tensor.nbytes > self._capacity:
                yield self._pack(waiting, size, is_last=False)
                waiting, size = [], 0
            waiting.append((name, tensor))
            size += tensor.nbytes
        if waiting:
            yield self._pack(waiting, size, is_last=True)

    def _pack(self, named: list[tuple[str, Tensor]], size: int, *, is_last: bool) -> Bucket:
        bucket = Bucket(self._room(size)[:size], is_last)
        start = 0
        for name, tensor in named:
            flat = tensor.contiguous().flatten().view(torch.uint8)
            bucket.data[start : start + flat.numel()].copy_(flat)
            start += flat.numel()
            bucket.names.append(name)
            bucket.dtypes.append(str(tensor.dtype).removeprefix("torch."))
            bucket.shapes.append(list(tensor.shape))
        return bucket

    def _same_room(self, size: int) -> Tensor:
        if self._data.numel() < size:
            self._data = torch.empty(size, dtype=torch.uint8, device=self._device)
        return self._data


def unpack(
    data: Tensor, names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a bucket's bytes, as views of ``data``."""
    start = 0
    for name, dtype, shape in zip(names, dtypes, shapes, strict=True):
        kind = getattr(torch, dtype)
        end = start + torch.Size(shape).numel() * kind.itemsize
        yield name, data[start:end].view(kind).view(list(shape))
        start = end
