"""The numbers of weight versions, and which engines a push reaches: all of them, or with ``--canary-engine`` the last one before the others.

With that flag the last engine has a transport of its own, so that it can get the candidate alone and lose it again while the
other engines serve undisturbed. Without it there is one transport for all engines.

Guarantees: a push that fails on one rank leaves no other rank alone in a collective. An engine that has a version already is not
asked to load it again, unless the engines were connected anew.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from slime.args import Arguments
from slime.weight_sync import Sent, WeightSync
from slime.weight_sync.adapter import AdapterWeightSync
from slime.weight_sync.broadcast import BroadcastWeightSync, DeltaWeightSync
from slime.weight_sync.disk import DiskWeightSync
from slime.weight_sync.remote_engine import RemoteEngine
from slime.weight_sync.shared_memory import SharedMemoryWeightSync, StreamWeightSync

TRANSPORTS = {"nccl": BroadcastWeightSync, "shared": SharedMemoryWeightSync, "disk": DiskWeightSync}


def make_weight_sync(args: Arguments, *, device: torch.device, address: str) -> WeightSync:
    """Return this trainer rank's transport; ``address`` is where engines reach rank 0."""
    if args.update_weight_mode == "adapter":
        return AdapterWeightSync(args, device=device, address=address)
    if args.update_weight_mode == "delta":
        return DeltaWeightSync(args, device=device, address=address)
    if args.update_weight_transport == "shared" and device.type == "cpu":
        return StreamWeightSync(args, device=device, address=address)
    return TRANSPORTS[args.update_weight_transport](args, device=device, address=address)


class Versions:
    """The numbers of a policy's weight versions on one rank.

    A version counts pushes of changed weights: a push after no successful step repeats the number. The number of a
    candidate that a canary engine served is never used for other weights, because tokens may carry it.
    """

    def __init__(self) -> None:
        self.live = self._newest = self._canary = 0
        self._changed = self._changed_before = False

    def next(self) -> int:
        """Return the number that the current weights get; ``live`` if no step changed them."""
        return max(self.live, self._newest) + 1 if self._changed else self.live

    def changed(self) -> None:
        """Note that a step, or a checkpoint, changed the weights."""
        self._changed = True

    def snapshot(self) -> None:
        """Remember for :meth:`undo` whether the weights differ from those that serve."""
        self._changed_before = self._changed

    def undo(self) -> None:
        """Go back to the last :meth:`snapshot`; a candidate's number is lost."""
        self._changed = self._changed_before
        self._newest = max(self._newest, self._canary)

    def candidate(self) -> int:
        """Return the number that the current weights get, and note that a canary engine serves them."""
        self._canary = self.next()
        return self._canary

    def pushed(self, version: int) -> None:
        """Note that all engines serve the current weights as ``version``."""
        self.live, self._changed = version, False

    def state(self) -> dict[str, int]:
        """Return the part of a checkpoint's metadata."""
        return {"weight_version": self.next(), "newest_version": self._newest}

    def load(self, meta: Mapping[str, Any]) -> None:
        """Continue after the checkpoint with ``meta``."""
        self.live = int(meta["weight_version"])
        self._newest = int(meta.get("newest_version", self.live))


Weights = Callable[[], Iterator[tuple[str, Tensor]]]
Send = Callable[[Iterator[tuple[str, Tensor]], str], None]


class Pushes:
    """Owns a training rank's transports; every rank calls the same methods in the same order."""

    def __init__(self, args: Arguments, *, device: torch.device, address: str) -> None:
        """``address``: where engines reach rank 0."""
        self._most = make_weight_sync(args, device=device, address=address)
        self._last = make_weight_sync(args, device=device, address=address) if args.canary_engine else None
        self._ahead: str | None = None
        self._offered: str | None = None

    def connect(self, engines: list[RemoteEngine]) -> None:
        """Reach ``engines`` from now on."""
        self._ahead = self._offered = None
        if self._last is None:
            self._most.connect(engines)
            return
        self._most.connect(engines[:-1])
        self._last.connect(engines[-1:])

    def push(self, weights: Weights, version: str) -> None:
        """Make ``weights`` live on all engines as ``version``; each transport reads them once, unless it was offered them."""
        offered, self._offered = self._offered, None
        if offered == version:
            self._ahead = None
            for sync in self._all():
                sync.serve(version)
            return
        due = [self._most]
        if self._last is not None and self._ahead != version:
            due.append(self._last)
        self._ahead = None
        _push_each(due, weights, version)

    def offer(self, weights: Weights, version: str) -> Sent:
        """Give all engines ``weights``, which get ``version`` if they are accepted; return what was sent."""
        self._offered = None
        _each(self._all(), weights, version, lambda sync: sync.offer)
        self._offered = version
        return self._most.sent

    def push_to_canary(self, weights: Weights, version: str) -> None:
        """Make ``weights`` live as ``version`` on the last engine alone; the next :meth:`push` of this version spares it."""
        self._ahead = None
        _push_each([self._canary()], weights, version)
        self._ahead = version

    def take_back(self, weights: Weights, version: str) -> None:
        """Give the engines that have a candidate ``weights``, which serve; a no-op if none has one."""
        ahead, self._ahead = self._ahead, None
        offered, self._offered = self._offered, None
        if offered is not None:
            _push_each(self._all(), weights, version)
        elif ahead is not None:
            _push_each([self._canary()], weights, version)

    def close(self) -> None:
        """Let go of the engines without calling them."""
        for sync in self._all():
            sync.close()

    def _all(self) -> list[WeightSync]:
        return [sync for sync in (self._most, self._last) if sync is not None]

    def _canary(self) -> WeightSync:
        if self._last is None:
            raise ValueError("no engine is first without --canary-engine; add it")
        return self._last


def _push_each(syncs: list[WeightSync], weights: Weights, version: str) -> None:
    """Push over each of ``syncs``."""
    _each(syncs, weights, version, lambda sync: sync.push)


def _each(syncs: list[WeightSync], weights: Weights, version: str, way: Callable[[WeightSync], Send]) -> None:
    """Send over each of ``syncs``; after a failure help the other ranks to gather the rest, then raise it."""
    for number, sync in enumerate(syncs, 1):
        try:
            way(sync)(weights(), version)
        except Exception:
            for _ in syncs[number:]:
                collections.deque(weights(), maxlen=0)
            raise
