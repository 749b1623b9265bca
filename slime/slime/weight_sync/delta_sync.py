"""Broadcast changes (`slime.weight_sync.delta`) to all engines, like whole weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from slime.args import Arguments
from slime.weight_sync import LOADER
from slime.weight_sync.broadcast import BroadcastWeightSync
from slime.weight_sync.delta import Change, Sender
from slime.weight_sync.remote_engine import EngineCalls, RemoteEngine
from slime.weight_sync.requests import serialized


class DeltaWeightSync(BroadcastWeightSync):
    """See the module.

    Attributes:
        moved_bytes: bytes of the last push.
    """

    def __init__(self, args: Arguments, *, device: torch.device, address: str) -> None:
        super().__init__(args, device=device, address=address)
        self.moved_bytes = 0
        self._sender = Sender()
        self._live = ""

    def _leave(self, *, broken: bool) -> None:
        super()._leave(broken=broken)
        self._sender.forget()
        self._live = ""

    def _transfer(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        self.moved_bytes = 0
        parts = self._sender.changes(weights, self._args.update_weight_buffer_size)
        part, last = next(parts)
        self._pause()
        self._call(RemoteEngine.begin_weight_update)
        self._send_change(part, version if last else None)
        for part, last in parts:
            self._send_change(part, version if last else None)
        self._sent()
        self._live = version

    def _send_change(self, change: Change, version: str | None) -> None:
        assert self._group is not None
        request: dict[str, Any] = {
            "operation": "change",
            "group": self._group.name,
            "nbytes": change.nbytes,
            "change": {
                "names": change.names,
                "dtypes": change.dtypes,
                "shapes": change.shapes,
                "counts": change.counts,
                "base": self._live,
            },
            "version": version,
        }
        self.moved_bytes += change.nbytes
        self._begin(
            torch.cat(change.data).to(self._device) if change.nbytes else torch.empty(0, dtype=torch.uint8),
            lambda: EngineCalls.to_all(
                self._engines,
                RemoteEngine.update_weights_from_tensor,
                serialized(request),
                LOADER,
                flush_cache=version is not None and self._flushes(),
                weight_version=version,
            ),
        )
