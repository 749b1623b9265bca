"""Pack weights into flat byte buckets, in two alternating buffers.

A bucket is the concatenation of its tensors' bytes, in order, as SGLang's ``flattened_bucket`` format reads them. A tensor is
packed on arrival, so at most one tensor exists outside the buffers. A bucket stays valid while the next one is packed: finish
reading it before you request the one after that. A tensor larger than a buffer gets a bucket of its own size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Bucket:
    """Flat bytes and the tensors in them; ``is_last`` marks the last bucket of the weights."""

    data: Tensor
    is_last: bool = False
    names: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    nbytes: int = 0

    def add(self, name: str, tensor: Tensor) -> None:
        """Append a tensor."""
        flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
        self.data[self.nbytes : self.nbytes + flat.numel()].copy_(flat)
        self.nbytes += flat.numel()
        self.names.append(name)
        self.dtypes.append(str(tensor.dtype).removeprefix("torch."))
        self.shapes.append(list(tensor.shape))

    def ended(self, *, is_last: bool) -> Bucket:
        """Return this bucket with its data cut to the packed bytes."""
        self.data, self.is_last = self.data[: self.nbytes], is_last
        return self


class BucketBuffer:
    """Owns the two buffers of one rank."""

    def __init__(self, capacity: int, device: torch.device, room: Callable[[int], Tensor] | None = None) -> None:
        """Create the buffers.

        Args:
            capacity: bytes per bucket.
            device: where the buffers are.
            room: returns the memory of the next bucket; default: two alternating buffers.
        """
        if capacity <= 0:
            raise ValueError(f"--update-weight-buffer-size {capacity} is not positive; use a number of bytes above 0")
        self._capacity = capacity
        self._device = device
        self._buffers = [torch.empty(0, dtype=torch.uint8, device=device) for _ in range(2)]
        self._next = 0
        self._room = room or self._other_buffer

    def fill(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[Bucket]:
        """Yield the buckets of ``weights``, which must share one dtype to be aligned."""
        bucket: Bucket | None = None
        for name, tensor in weights:
            if bucket is not None and bucket.nbytes + tensor.nbytes > self._capacity:
                yield bucket.ended(is_last=False)
                bucket = None
            if bucket is None:
                bucket = Bucket(self._room(max(self._capacity, tensor.nbytes)))
            bucket.add(name, tensor)
        if bucket is not None:
            yield bucket.ended(is_last=True)

    def _other_buffer(self, size: int) -> Tensor:
        self._next ^= 1
        if self._buffers[self._next].numel() < size:
            self._buffers[self._next] = torch.empty(size, dtype=torch.uint8, device=self._device)
        return self._buffers[self._next]


def unpack(
    data: Tensor, names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield a bucket's tensors as views of ``data``."""
    start = 0
    for name, dtype, shape in zip(names, dtypes, shapes, strict=True):
        kind = getattr(torch, dtype)
        end = start + torch.Size(shape).numel() * kind.itemsize
        yield name, data[start:end].view(kind).view(list(shape))
        start = end
