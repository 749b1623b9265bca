"""Compute a tensor's checksum from parts that several processes hold.

Let ``b[i]`` be the bits of element ``i`` as an integer, in row-major order of the whole tensor. The checksum is
``sum(b[i] * m(i)) mod 2**64`` with ``m(i)`` odd. Changing one element always changes it. A tensor's checksum is the sum of its
parts' checksums, however the tensor is split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

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
