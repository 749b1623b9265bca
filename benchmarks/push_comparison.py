"""Compares the push by broadcast with a serial one: same bytes, same receiver, in alternation.

`SerialBroadcast` is the baseline, not a product path: it packs a bucket of ``--update-weight-buffer-size`` bytes, broadcasts it,
waits until it is loaded, and only then touches the next weight.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.weight_receiver import ReceiverProcess
from slime.args import Arguments
from slime.weight_sync.broadcast import BroadcastWeightSync
from slime.weight_sync.requests import Bucket, BucketBuffer


class SerialBroadcast(BroadcastWeightSync):
    """See the module."""

    def __init__(self, args: Arguments, *, device: torch.device, address: str) -> None:
        super().__init__(args, device=device, address=address)
        self._only = torch.empty(0, dtype=torch.uint8, device=device)
        self._buffer = BucketBuffer(args.update_weight_buffer_size, device, self._same_buffer)

    def _same_buffer(self, size: int) -> Tensor:
        if self._only.numel() < size:
            self._only = torch.empty(size, dtype=torch.uint8, device=self._device)
        return self._only

    def _send(self, bucket: Bucket, **keywords: Any) -> None:
        super()._send(bucket, **keywords)
        self._sent()


def compare(args: Arguments, weights: dict[str, Tensor], push_seconds: Any, repeats: int) -> dict[str, Any]:
    """Push ``weights`` ``repeats`` times each way, one after the other; return the seconds and by how much the serial one is slower.

    ``ratio_low`` and ``ratio_high`` are the quartiles of the ratios of neighbouring pushes.
    """
    spec = {key: [list(value.shape), str(value.dtype).removeprefix("torch.")] for key, value in weights.items()}
    device = next(iter(weights.values())).device
    times: dict[str, list[float]] = {"serial": [], "overlapped": []}
    kinds = {"serial": SerialBroadcast, "overlapped": BroadcastWeightSync}
    with tempfile.TemporaryDirectory() as folder:
        receiver = ReceiverProcess(args, spec, Path(folder), device=device.type)
        syncs = {name: kind(args, device=device, address="127.0.0.1") for name, kind in kinds.items()}
        try:
            for sync in syncs.values():
                sync.connect([receiver.handle])
            for number in range(repeats + 1):
                for name, sync in syncs.items():
                    elapsed = push_seconds(sync, weights, number)
                    if number:  # the first one touches the memory of both sides for the first time
                        times[name].append(elapsed)
        finally:
            for sync in syncs.values():
                sync.close()
            receiver.stop()
    ratios = [serial / overlapped for serial, overlapped in zip(*times.values(), strict=True)]
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        **{f"{name}_seconds": [round(value, 4) for value in values] for name, values in times.items()},
        "ratio_of_medians": round(medians["serial"] / medians["overlapped"], 2),
        "ratio_low": round(quartiles[0], 2),
        "ratio_high": round(quartiles[2], 2),
    }
