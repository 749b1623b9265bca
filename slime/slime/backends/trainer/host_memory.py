"""What a rank keeps in host memory: a copy of what a step changes, and tensors that left their device for a while.

`HostCopy` is that copy, and may be written to a file; `Snapshot` is one from which a step can be undone bit for bit;
`HostMemory` serves ``--offload-train``. Host memory is one
block each, pinned for a GPU, and used again the next time.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from slime.backends.trainer.schedule import Schedule
from slime.checkpoints.checkpoint_folder import rng_state, set_rng_state
from slime.exceptions import CheckpointError
from slime.utils.data_files import load_data, save_data
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
    """Owns one rank's host memory of released tensors, and tracks them.

    A tensor stays the same object, with its shape, views and references; only its storage is emptied and later filled with the
    same bytes, as Megatron-core does with its buffers. So optimizer, FSDP2 and Megatron need not know. An offloaded tensor must
    not be used, except through :meth:`value`.
    """

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


PIECE_BYTES = 64 << 20
"""Bytes that an exchange holds a second time on the device."""


class Changing(NamedTuple):
    """What a step changes on one rank; the same tensors in the same order each time.

    Attributes:
        weights: what a forward pass and a push read: trainable parameters and buffers.
        others: further tensors, such as those of a reference that follows the policy.
        optimizers: optimizers of torch's kind, with a state for every parameter.
        schedule: of the learning rate.
    """

    weights: Sequence[Tensor]
    others: Sequence[Tensor]
    optimizers: Sequence[Any]
    schedule: Schedule


COMPARED = 1 << 16
"""Elements of a tensor that `Snapshot.moved` looks at, at most."""


class HostCopy:
    """Owns host memory for one rank's copy of what a step changes.

    The copy covers weights, buffers, moments, a reference that follows the policy, step counts, schedule and random state.
    :meth:`put` restores every byte in place, so views and references stay. A file has the same bytes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._segment: Segment | None = None
        self._sizes: list[int] = []
        self._small: dict[str, Any] = {}

    def take(self, changing: Changing) -> int:
        """Copy everything, in place of an earlier copy, and return the number of bytes."""
        storages = _storages(changing)
        self._make_room([storage.nbytes() for storage in storages])
        for storage, host in zip(storages, self._parts(), strict=True):
            host.copy_(bytes_of(storage), non_blocking=True)
        self._synchronize()
        self._small = {
            "groups": [_settings(group) for optimizer in changing.optimizers for group in optimizer.param_groups],
            "schedule": changing.schedule.state_dict(),
            "random": rng_state(),
        }
        return sum(self._sizes)

    def put(self, changing: Changing) -> None:
        """Restore everything.

        Raises:
            RuntimeError: the tensors are not those of :meth:`take`.
        """
        storages = _storages(changing)
        if [storage.nbytes() for storage in storages] != self._sizes:
            raise RuntimeError("model or optimizer has other tensors than when the copy was made")
        for storage, host in zip(storages, self._parts(), strict=True):
            bytes_of(storage).copy_(host, non_blocking=True)
        self._synchronize()
        groups = [group for optimizer in changing.optimizers for group in optimizer.param_groups]
        for group, settings in zip(groups, self._small["groups"], strict=True):
            # What later steps added to the group goes.
            for name in set(group) - set(settings) - {"params"}:
                del group[name]
            group.update(copy.deepcopy(settings))
        changing.schedule.load_state_dict(self._small["schedule"])
        set_rng_state(self._small["random"])

    def write(self, path: Path) -> None:
        """Write the copy to the file ``path``, and beside it settings and random state under the suffix ``.pt``."""
        save_file({f"{number:06d}": part for number, part in enumerate(self._parts())}, path)
        save_data(self._small, path.with_suffix(".pt"))

    def read(self, path: Path) -> None:
        """Read what :meth:`write` wrote, in place of an earlier copy.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        try:
            with safe_open(path, framework="pt") as file:
                parts = [file.get_tensor(name) for name in sorted(file.keys())]
            small = load_data(path.with_suffix(".pt"))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        self._make_room([part.numel() for part in parts])
        for part, host in zip(parts, self._parts(), strict=True):
            host.copy_(part)
        self._small = small

    def moved(self, changing: Changing) -> tuple[float, int]:
        """Return the sum of squared changes of the weights since :meth:`take`, and of how many elements it is.

        Of each tensor the first `COMPARED` elements count, so that the comparison costs milliseconds.
        """
        total, count, seen = 0.0, 0, set[int]()
        parts = self._parts()
        for tensor in changing.weights:
            storage = storage_of(tensor)
            if storage._cdata in seen or not storage.nbytes():
                continue
            seen.add(storage._cdata)
            size = min(storage.nbytes(), COMPARED * tensor.element_size())
            before = next(parts)[:size].view(tensor.dtype).to(self._device)
            change = bytes_of(storage)[:size].view(tensor.dtype).double() - before.double()
            total, count = total + float(change.square().sum()), count + change.numel()
        return total, count

    @contextmanager
    def swapped(self, changing: Changing) -> Iterator[None]:
        """Run the block with the weights of the copy, then exchange them back."""
        self._exchange(changing)
        try:
            yield
        finally:
            self._exchange(changing)

    def close(self) -> None:
        """Free the host memory."""
        if self._segment is not None:
            self._segment.close()
        self._segment = None

    def _make_room(self, sizes: list[int]) -> None:
        total = sum(map(_room_of, sizes))
        if self._segment is None or self._segment.data.numel() < total:
            self.close()
            self._segment = Segment(max(total, ALIGNMENT), pinned=self._device.type == "cuda")
        self._sizes = sizes

    def _exchange(self, changing: Changing) -> None:
        storages = _unique(changing.weights)
        # The parts after those of the weights are not exchanged: no forward pass reads moments.
        for storage, host in zip(storages, self._parts(), strict=False):
            device = bytes_of(storage)
            for start in range(0, device.numel(), PIECE_BYTES):
                here, there = device[start : start + PIECE_BYTES], host[start : start + PIECE_BYTES]
                kept = here.clone()
                here.copy_(there)
                there.copy_(kept)
        self._synchronize()

    def _parts(self) -> Iterator[Tensor]:
        """Yield the host bytes of each storage; weights come first."""
        assert self._segment is not None
        start = 0
        for size in self._sizes:
            yield self._segment.data[start : start + size]
            start += _room_of(size)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class Snapshot(HostCopy):
    """The copy to which steps go back. :meth:`take` comes first, then :meth:`keep` or :meth:`put`.

    :meth:`swapped` runs a block with the weights of the copy and needs no third one: device and host exchange their bytes
    piece by piece.

    Attributes:
        is_open: whether the steps since :meth:`take` are neither kept nor undone.

    Example:
        >>> from slime.args import Arguments
        >>> weight = torch.ones(2)
        >>> changing = Changing([weight], [], [], Schedule(Arguments(lr_decay_style="constant"), None))
        >>> snapshot = Snapshot(torch.device("cpu"))
        >>> snapshot.take(changing)  # bytes
        8
        >>> weight -= 0.5  # a step, which the gate refuses
        >>> snapshot.put(changing)
        >>> weight.tolist()
        [1.0, 1.0]
        >>> snapshot.close()
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.is_open = False

    def take(self, changing: Changing) -> int:
        """Copy everything, in place of an earlier copy, and return the number of bytes."""
        size = super().take(changing)
        self.is_open = True
        return size

    def keep(self) -> None:
        """Keep the steps since :meth:`take`; the host memory is used again."""
        self.is_open = False

    def put(self, changing: Changing) -> None:
        """Restore everything; raises as `HostCopy.put`."""
        super().put(changing)
        self.is_open = False


def _room_of(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _storages(changing: Changing) -> list[torch.UntypedStorage]:
    return _unique([*changing.weights, *states_of(changing.optimizers), *changing.others])


def states_of(optimizers: Sequence[Any]) -> Iterator[Tensor]:
    """Yield each parameter of ``optimizers`` and the tensors of its state, in the order of groups and names."""
    for optimizer in optimizers:
        for parameter in [parameter for group in optimizer.param_groups for parameter in group["params"]]:
            yield parameter
            state = optimizer.state[parameter]
            yield from (state[name] for name in sorted(state) if isinstance(state[name], Tensor))


def _unique(tensors: Sequence[Tensor]) -> list[torch.UntypedStorage]:
    """Return each storage once, in order, without empty ones."""
    # Tied weights are two tensors over one storage.
    results = {storage._cdata: storage for storage in map(storage_of, tensors) if storage.nbytes()}
    return list(results.values())


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
