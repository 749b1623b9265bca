"""Which engines a push reaches: all of them, or with ``--canary-engine`` the last one before the others.

With that flag the last engine has a transport of its own, so that it can get the candidate alone and lose it again while the
other engines serve undisturbed. Without it there is one transport for all engines.

Guarantees: a push that fails on one rank leaves no other rank alone in a collective. An engine that has a version already is not
asked to load it again, unless the engines were connected anew.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from slime.args import Arguments
from slime.weight_sync import WeightSync
from slime.weight_sync.remote_engine import RemoteEngine
from slime.weight_sync.transports import make_weight_sync

Weights = Callable[[], Iterator[tuple[str, Tensor]]]


class Pushes:
    """Owns a training rank's transports; every rank calls the same methods in the same order."""

    def __init__(self, args: Arguments, *, device: torch.device, address: str) -> None:
        """``address``: where engines reach rank 0."""
        self._most = make_weight_sync(args, device=device, address=address)
        self._last = make_weight_sync(args, device=device, address=address) if args.canary_engine else None
        self._ahead: str | None = None

    def connect(self, engines: list[RemoteEngine]) -> None:
        """Reach ``engines`` from now on."""
        self._ahead = None
        if self._last is None:
            self._most.connect(engines)
            return
        self._most.connect(engines[:-1])
        self._last.connect(engines[-1:])

    def push(self, weights: Weights, version: str) -> None:
        """Make ``weights`` live on all engines as ``version``; each transport reads them once."""
        due = [self._most]
        if self._last is not None and self._ahead != version:
            due.append(self._last)
        self._ahead = None
        _push_each(due, weights, version)

    def push_to_canary(self, weights: Weights, version: str) -> None:
        """Make ``weights`` live as ``version`` on the last engine alone; the next :meth:`push` of this version spares it."""
        self._ahead = None
        _push_each([self._canary()], weights, version)
        self._ahead = version

    def take_back(self, weights: Weights, version: str) -> None:
        """Give the last engine ``weights``, which the others have; a no-op unless it is ahead of them."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            _push_each([self._canary()], weights, version)

    def close(self) -> None:
        """Let go of the engines without calling them."""
        for sync in filter(None, (self._most, self._last)):
            sync.close()

    def _canary(self) -> WeightSync:
        if self._last is None:
            raise ValueError("no engine is first without --canary-engine; add it")
        return self._last


def _push_each(syncs: list[WeightSync], weights: Weights, version: str) -> None:
    """Push over each of ``syncs``; after a failure help the other ranks to gather the rest, then raise it."""
    for number, sync in enumerate(syncs, 1):
        try:
            sync.push(weights(), version)
        except Exception:
            for _ in syncs[number:]:
                collections.deque(weights(), maxlen=0)
            raise
