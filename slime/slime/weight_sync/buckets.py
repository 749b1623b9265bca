"""Weights as flat byte buckets: one buffer, used again for each bucket.

A bucket is the concatenation of its tensors' bytes, in order, as SGLang's ``flattened_bucket`` format reads them. A bucket is
valid until the next one is taken; a tensor larger than the buffer gets a bucket of its own size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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

    def __init__(self, capacity: int, device: torch.device) -> None:
        """``capacity``: bytes of a bucket."""
        if capacity <= 0:
            raise ValueError(f"--update-weight-buffer-size is {capacity}; it must be a positive number of bytes")
        self._capacity = capacity
        self._device = device
        self._data = torch.empty(0, dtype=torch.uint8, device=device)

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
        if self._data.numel() < size:
            self._data = torch.empty(size, dtype=torch.uint8, device=self._device)
        bucket = Bucket(self._data[:size], is_last)
        start = 0
        for name, tensor in named:
            flat = tensor.contiguous().flatten().view(torch.uint8)
            bucket.data[start : start + flat.numel()].copy_(flat)
            start += flat.numel()
            bucket.names.append(name)
            bucket.dtypes.append(str(tensor.dtype).removeprefix("torch."))
            bucket.shapes.append(list(tensor.shape))
        return bucket
