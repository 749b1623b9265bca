"""A copy of what an optimizer step changes, in host memory, so that the step can be undone bit for bit.

The copy covers weights, buffers, moments, a reference that follows the policy, step counts, schedule and random state. Its
host memory is one block, pinned for a GPU, and is used again by the next copy.

Guarantees: :meth:`Snapshot.put` restores every byte in place, so views and references stay. :meth:`Snapshot.swapped` runs a
block with the weights of the copy and needs no third one: device and host exchange their bytes piece by piece.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slime.backends.trainer.offload import ALIGNMENT, bytes_of, storage_of
from slime.backends.trainer.schedule import Schedule
from slime.checkpoints.checkpoint_folder import rng_state, set_rng_state
from slime.weight_sync.segments import Segment

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


class Snapshot:
    """Owns one rank's copy. :meth:`take` comes first, then :meth:`keep` or :meth:`put`.

    Attributes:
        is_open: whether the steps since :meth:`take` are neither kept nor undone.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._segment: Segment | None = None
        self._sizes: list[int] = []
        self._small: dict[str, Any] = {}
        self.is_open = False

    def take(self, changing: Changing) -> int:
        """Copy everything, in place of an earlier copy, and return the number of bytes."""
        storages = _storages(changing)
        self._sizes = [storage.nbytes() for storage in storages]
        total = sum(map(_room_of, self._sizes))
        if self._segment is None or self._segment.data.numel() < total:
            self.close()
            self._segment = Segment(max(total, ALIGNMENT), pinned=self._device.type == "cuda")
        for storage, host in zip(storages, self._parts(), strict=True):
            host.copy_(bytes_of(storage), non_blocking=True)
        self._synchronize()
        self._small = {
            "groups": [_settings(group) for optimizer in changing.optimizers for group in optimizer.param_groups],
            "schedule": changing.schedule.state_dict(),
            "random": rng_state(),
        }
        self.is_open = True
        return sum(self._sizes)

    def keep(self) -> None:
        """Keep the steps since :meth:`take`; the host memory is used again."""
        self.is_open = False

    def put(self, changing: Changing) -> None:
        """Restore everything.

        Raises:
            RuntimeError: the tensors are not those of :meth:`take`.
        """
        storages = _storages(changing)
        if [storage.nbytes() for storage in storages] != self._sizes:
            raise RuntimeError("model or optimizer has other tensors than when the snapshot was taken")
        for storage, host in zip(storages, self._parts(), strict=True):
            bytes_of(storage).copy_(host, non_blocking=True)
        self._synchronize()
        groups = [group for optimizer in changing.optimizers for group in optimizer.param_groups]
        for group, settings in zip(groups, self._small["groups"], strict=True):
            for name in set(group) - set(settings) - {"params"}:
                del group[name]
            group.update(copy.deepcopy(settings))
        changing.schedule.load_state_dict(self._small["schedule"])
        set_rng_state(self._small["random"])
        self.is_open = False

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

    def _exchange(self, changing: Changing) -> None:
        storages = _unique(changing.weights)
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
    results = {storage._cdata: storage for storage in map(storage_of, tensors) if storage.nbytes()}
    return list(results.values())


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
