"""What the trainer and `slime.weight_sync.engine_loader` inside an engine agree on: requests, buckets and checksums.

A request is a JSON object. It is sent as a tensor of its bytes, because SGLang's ``/update_weights_from_tensor`` passes only
tensors to a custom weight loader.

Weights are packed into flat byte buckets, in two alternating buffers. A bucket is the concatenation of its tensors'
bytes, in order, as SGLang's ``flattened_bucket`` format reads them. Tensors wait until they have ``PACK_BYTES``, then one
launch per dtype casts and copies them all; so besides the buffers a push holds these and the tensor that comes next. A bucket stays
valid while the next one is packed: finish reading it before you request the one after that. A tensor larger than a buffer
gets a bucket of its own size.

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

from slime.arguments.trainer import PACK_BYTES

REQUEST = "slime-request"


def request_tensor(request: dict[str, Any]) -> Tensor:
    """Return the bytes of ``request`` as a tensor."""
    return torch.frombuffer(bytearray(json.dumps(request).encode()), dtype=torch.uint8)


def serialized(request: dict[str, Any]) -> bytes:
    """Return the pickled list of named tensors that carries ``request``."""
    return pickle.dumps([(REQUEST, request_tensor(request))])


def read_request(named_tensors: list[tuple[str, Tensor]]) -> dict[str, Any]:
    """Return the request in ``named_tensors``."""
    return json.loads(dict(named_tensors)[REQUEST].cpu().numpy().tobytes())


def cast(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield ``weights`` as ``dtype``."""
    return ((name, tensor.detach().to(dtype)) for name, tensor in weights)


@dataclass
class Bucket:
    """Flat bytes and the tensors in them, as ``dtype``.

    Attributes:
        data: where the bytes go.
        staging: memory of ``PACK_BYTES`` on the tensors' device to pack in on the way to ``data``, which is elsewhere.
        is_last: whether the weights end here.
        ready: on CUDA what comes after all copies into ``data``, which the CPU does not wait for.
    """

    data: Tensor
    dtype: torch.dtype
    staging: Tensor | None = None
    is_last: bool = False
    names: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    nbytes: int = 0
    ready: torch.Event | None = None
    _packed: int = 0
    _waiting: list[Tensor] = field(default_factory=list)

    def add(self, name: str, tensor: Tensor) -> None:
        """Append a tensor, which must keep its values until the bucket ends."""
        for part in tensor.detach().reshape(-1).split(PACK_BYTES // self.dtype.itemsize):
            size = part.numel() * self.dtype.itemsize
            if self.nbytes + size > self._packed + PACK_BYTES:
                self._pack()
            self._waiting.append(part)
            self.nbytes += size
        self.names.append(name)
        self.dtypes.append(str(self.dtype).removeprefix("torch."))
        self.shapes.append(list(tensor.shape))

    def _pack(self) -> None:
        parts, target = self._waiting, self.data[self._packed : self.nbytes]
        packed = target if self.staging is None else self.staging[: target.numel()]
        places = packed.view(self.dtype).split([part.numel() for part in parts])
        # One launch per dtype: of mixed ones torch would copy each tensor by itself.
        for dtype in dict.fromkeys(part.dtype for part in parts):
            same = [index for index, part in enumerate(parts) if part.dtype == dtype]
            torch._foreach_copy_(  # pyright: ignore[reportPrivateImportUsage]
                [places[index] for index in same], [parts[index] for index in same]
            )
        if packed is not target:
            target.copy_(packed, non_blocking=True)
        self._packed, self._waiting = self.nbytes, []

    def ended(self, device: torch.device, *, is_last: bool) -> Bucket:
        """Return this bucket of tensors on ``device`` with its data cut to the packed bytes."""
        self._pack()
        self.data, self.is_last = self.data[: self.nbytes], is_last
        if device.type == "cuda":
            self.ready = torch.cuda.current_stream(device).record_event()
        return self


class BucketBuffer:
    """Owns the two buffers of one rank."""

    def __init__(
        self,
        capacity: int,
        device: torch.device,
        dtype: torch.dtype,
        room: Callable[[int, int], Tensor] | None = None,
        *,
        staged: bool = False,
    ) -> None:
        """Create the buffers.

        Args:
            capacity: bytes per bucket.
            device: where the weights are, and the buffers.
            dtype: what weights are packed as.
            room: returns buffer 0 or 1 with at least so many bytes; default: memory of ``device``.
            staged: ``room`` is pinned host memory, which packed bytes are copied to.
        """
        if capacity <= 0:
            raise ValueError(f"--update-weight-buffer-size {capacity} is not positive; use a number of bytes above 0")
        self._capacity = capacity
        self._device = device
        self._dtype = dtype
        self._buffers = [torch.empty(0, dtype=torch.uint8, device=device) for _ in range(2)]
        self._room = room or self._buffer
        self._staged = staged
        self._staging: Tensor | None = None

    def fill(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[Bucket]:
        """Yield the buckets of ``weights``."""
        if self._staged and self._staging is None:
            self._staging = torch.empty(PACK_BYTES, dtype=torch.uint8, device=self._device)
        bucket: Bucket | None = None
        turn = 0  # each push begins with the same buffer, so the same one grows for a large tensor
        for name, tensor in weights:
            nbytes = tensor.numel() * self._dtype.itemsize
            if bucket is not None and bucket.nbytes + nbytes > self._capacity:
                yield bucket.ended(self._device, is_last=False)
                bucket, turn = None, 1 - turn
            if bucket is None:
                bucket = Bucket(self._room(turn, max(self._capacity, nbytes)), self._dtype, self._staging)
            bucket.add(name, tensor)
        if bucket is not None:
            yield bucket.ended(self._device, is_last=True)

    def _buffer(self, turn: int, size: int) -> Tensor:
        if self._buffers[turn].numel() < size:
            self._buffers[turn] = torch.empty(0, dtype=torch.uint8, device=self._device)  # not beside its successor
            self._buffers[turn] = torch.empty(size, dtype=torch.uint8, device=self._device)
        return self._buffers[turn]


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
        """Yield ``weights``, as the engines hold them, and record the checksum of each."""
        for name, tensor in weights:
            whole = tensor.detach().contiguous()
            self.found[name] = (checksum(whole, torch.empty_like(whole, device="meta")), tensor.numel())
            self.shapes[name] = list(tensor.shape)
            self.dtypes[name] = str(tensor.dtype).removeprefix("torch.")
            yield name, tensor
