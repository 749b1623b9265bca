"""What the trainer and `slime.weight_sync.engine_loader` inside an engine agree on: requests, buckets and checksums.

A request is a JSON object. It is sent as a tensor of its bytes, because SGLang's ``/update_weights_from_tensor`` passes only
tensors to a custom weight loader.

Weights are packed into flat byte buckets, in two alternating buffers. A bucket is the concatenation of its tensors'
bytes, in order, as SGLang's ``flattened_bucket`` format reads them. A tensor is packed on arrival, so at most one
tensor exists outside the buffers. A bucket stays valid while the next one is packed: finish reading it before you
request the one after that. A tensor larger than a buffer gets a bucket of its own size.

A tensor's checksum is computed from parts that several processes hold. Let ``b[i]`` be the bits of element ``i`` as an
integer, in row-major order of the whole tensor. The checksum is ``sum(b[i] * m(i)) mod 2**64`` with ``m(i)`` odd.
Changing one element always changes it. A tensor's checksum is the sum of its parts' checksums, however the tensor is
split.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

REQUEST = "slime-request"
DATA = "slime-data"


def request_tensor(request: dict[str, Any]) -> Tensor:
    """Return the bytes of ``request`` as a tensor."""
    return torch.frombuffer(bytearray(json.dumps(request).encode()), dtype=torch.uint8)


def serialized(request: dict[str, Any]) -> bytes:
    """Return the pickled list of named tensors that carries ``request``."""
    return pickle.dumps([(REQUEST, request_tensor(request))])


def read_request(named_tensors: list[tuple[str, Tensor]]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the request and the other tensors."""
    tensors = dict(named_tensors)
    request = tensors.pop(REQUEST)
    return json.loads(bytes(request.cpu().tolist())), tensors


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


CHUNK = 1 << 22
MODULUS = 1 << 64
_MULTIPLIER = -7046029254386353131  # 0x9E3779B97F4A7C15, the 64-bit golden ratio, as a signed number
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checksum(part: Tensor, place: Tensor) -> int:
    """Return the checksum of ``part``, in ``[0, 2**64)``.

    ``place`` says which elements of the whole these are: a view of the whole tensor with the shape of ``part``, possibly on
    ``meta``.
    """
    if part.dim() == 0:
        part, place = part.reshape(1), place.reshape(1)
    total = 0
    rows = max(1, CHUNK // max(1, part[:1].numel()))
    for start in range(0, part.size(0), rows):
        bits = part[start : start + rows].contiguous().view(_INTEGERS[part.element_size()]).to(torch.int64)
        index = torch.full((1,) * part.dim(), int(place.storage_offset()), dtype=torch.int64, device=part.device)
        for dimension, (size, stride) in enumerate(zip(bits.shape, place.stride(), strict=True)):
            first = start if dimension == 0 else 0
            steps = torch.arange(first, first + size, dtype=torch.int64, device=part.device) * stride
            index = index + steps.view(-1, *(1,) * (part.dim() - 1 - dimension))
        total += int((bits * ((index * _MULTIPLIER) | 1)).sum())
    return total % MODULUS


@dataclass
class Checksums:
    """Checksum and number of elements by tensor name."""

    found: dict[str, tuple[int, int]] = field(default_factory=dict)
    shapes: dict[str, list[int]] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)

    def of_all(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield ``weights`` unchanged and record the checksum of each."""
        for name, tensor in weights:
            whole = tensor.detach().contiguous()
            self.found[name] = (checksum(whole, torch.empty_like(whole, device="meta")), tensor.numel())
            self.shapes[name] = list(tensor.shape)
            self.dtypes[name] = str(tensor.dtype).removeprefix("torch.")
            yield name, tensor
