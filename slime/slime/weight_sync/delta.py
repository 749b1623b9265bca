"""Send only changed weights, for remote engines and steps that change few bits.

With bfloat16 weights and small learning rates, most elements do not change. Rank 0 keeps the last sent weights in host memory.
Per tensor it sends index and value of the elements whose bits changed, or the whole tensor if that is smaller. Each engine rank
keeps the same weights in host memory, applies the change, and loads the changed tensors. So an engine holds bit for bit the
weights of a full push.

Guarantees: a change is applied only to the version it was computed against. After a reconnection or a failure the next push
is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

INDEX_BYTES = 4
CHUNK = 1 << 22
"""Elements compared or written at a time; torch's index of them takes 8 bytes each."""
WHOLE = -1
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class Change:
    """Changes of some tensors, in order.

    ``counts`` holds the number of changed elements per tensor (``WHOLE``: all are sent). A tensor's data are its whole
    bytes, or 32-bit indices into the flat tensor followed by the values.
    """

    names: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    data: list[Tensor] = field(default_factory=list)
    nbytes: int = 0


def bits(tensor: Tensor) -> Tensor:
    """Return the flat tensor's bits as integers; a view if the tensor is contiguous."""
    return tensor.contiguous().view(-1).view(_BITS[tensor.element_size()])


def number_of_changes(old: Tensor, new: Tensor) -> int:
    """Return how many elements of two flat tensors differ."""
    pairs = zip(old.split(CHUNK), new.split(CHUNK), strict=True)
    return sum(int((one != other).sum()) for one, other in pairs)


class Sender:
    """The trainer's copy, in host memory, of the last sent weights.

    A change also takes its own bytes, fewer than the tensor's, and 38 MB (9 bytes times ``CHUNK``) during the comparison.
    """

    def __init__(self) -> None:
        self._sent: dict[str, Tensor] = {}

    def forget(self) -> None:
        """Forget what was sent, so that the next push is whole."""
        self._sent = {}

    def changes(self, weights: Iterable[tuple[str, Tensor]], limit: int) -> Iterator[tuple[Change, bool]]:
        """Yield the changes since the last call in parts of about ``limit`` bytes, each with whether it is the last.

        Unchanged tensors are left out. Yielded changes count as sent.
        """
        change = Change()
        for name, tensor in weights:
            new = bits(tensor.detach()).cpu()
            data, count = self._difference(name, new)
            self._remember(name, new)
            if count == 0:
                continue
            if change.nbytes and change.nbytes + sum(part.nbytes for part in data) > limit:
                yield change, False
                change = Change()
            change.names.append(name)
            change.dtypes.append(str(tensor.dtype).removeprefix("torch."))
            change.shapes.append(list(tensor.shape))
            change.counts.append(count)
            change.data += [part.view(torch.uint8) for part in data]
            change.nbytes += sum(part.nbytes for part in data)
        yield change, True

    def _difference(self, name: str, new: Tensor) -> tuple[list[Tensor], int]:
        old = self._sent.get(name)
        if old is None or old.shape != new.shape or old.dtype != new.dtype:
            return [new.clone()], WHOLE
        size, changed = new.element_size(), number_of_changes(old, new)
        if changed * (INDEX_BYTES + size) >= new.nbytes or new.numel() >= 1 << 31:
            return [new.clone()], WHOLE if changed else 0
        index, values = torch.empty(changed, dtype=torch.int32), torch.empty(changed, dtype=new.dtype)
        end = 0
        for start in range(0, new.numel(), CHUNK):
            part = new[start : start + CHUNK]
            positions = (old[start : start + CHUNK] != part).nonzero().view(-1)
            first, end = end, end + positions.numel()
            values[first:end] = part[positions]
            index[first:end] = positions.add_(start)
        return [index, values], changed

    def _remember(self, name: str, new: Tensor) -> None:
        if name in self._sent and self._sent[name].shape == new.shape and self._sent[name].dtype == new.dtype:
            self._sent[name].copy_(new)
        else:
            self._sent[name] = new.clone()


class Mirror:
    """An engine rank's copy of the trainer's weights, with its version."""

    def __init__(self) -> None:
        self.version = ""
        self._weights: dict[str, Tensor] = {}

    def apply(
        self,
        data: Tensor,
        names: list[str],
        dtypes: list[str],
        shapes: list[list[int]],
        counts: list[int],
        base: str,
    ) -> list[tuple[str, Tensor]]:
        """Apply a change's ``data`` (bytes) to version ``base`` and return the changed tensors as a whole.

        Raises:
            RuntimeError: the copy has another version; nothing is applied.
        """
        if base and base != self.version:
            held = self.version or "never received"
            raise RuntimeError(f"a change of weights {base} cannot be applied to weights {held}")
        start = 0
        for name, dtype, shape, count in zip(names, dtypes, shapes, counts, strict=True):
            kind = getattr(torch, dtype)
            if count == WHOLE:
                end = start + torch.Size(shape).numel() * kind.itemsize
                self._weights[name] = _aligned(data[start:end], kind).view(shape)
            else:
                middle = start + count * INDEX_BYTES
                end = middle + count * kind.itemsize
                index, values = (
                    _aligned(data[start:middle], torch.int32),
                    _aligned(data[middle:end], _BITS[kind.itemsize]),
                )
                held = bits(self._weights[name])
                for where, what in zip(index.split(CHUNK), values.split(CHUNK), strict=True):
                    held[where.long()] = what
            start = end
        return [(name, self._weights[name]) for name in names]


def _aligned(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an aligned copy of the bytes ``part`` as ``dtype``."""
    return part.clone().view(dtype)
