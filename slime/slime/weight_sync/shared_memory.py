"""Push weights through shared memory to engines on the machine of a CUDA trainer; on a CPU: `slime.weight_sync.shared_stream`.

Guarantees: two segments alternate, so the trainer fills one while the engines load the other. The trainer copies each
byte once, as does each engine rank. Both segments stay mapped between pushes. If trainer and engines share one GPU
(``--share-gpu``, ``--colocate`` with one GPU), the segments are in its memory and the engine gets CUDA IPC handles.
Otherwise they are host memory, pinned in a trainer on CUDA.
"""

from __future__ import annotations

import io
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.weight_sync import on_one_gpu
from slime.weight_sync import LOADER
from slime.weight_sync.buckets import Bucket, BucketBuffer
from slime.weight_sync.engine_sync import EngineWeightSync
from slime.weight_sync.remote_engine import EngineCalls, RemoteEngine
from slime.weight_sync.requests import DATA, REQUEST, request_tensor, serialized
from slime.weight_sync.segments import Segment, check_same_host

SLOT_BYTES = 128 << 20
"""Maximum bytes per bucket: there are two segments, and small ones overlap filling and loading better."""


class SharedMemoryWeightSync(EngineWeightSync):
    """See the module."""

    def __init__(self, args: Arguments, *, device: torch.device, address: str) -> None:
        super().__init__(args, device=device, address=address)
        self._buffer = BucketBuffer(min(args.update_weight_buffer_size, SLOT_BYTES), device, self._next_slot)
        self._on_gpu = device.type == "cuda" and on_one_gpu(args)
        self._slots: list[Segment | Tensor | None] = [None, None]
        self._turn = 0

    def _join(self) -> None:
        check_same_host(self._call(RemoteEngine.hosts))
        if self._on_gpu and sum(self._call(RemoteEngine.num_weight_ranks)) != 1:
            raise ConfigError(
                "--update-weight-transport shared with --share-gpu is for one engine on one GPU; use nccl"
            )

    def _next_slot(self, size: int) -> Tensor:
        """Return the segment that no engine reads: :meth:`_send` waits for a bucket before it sends the next."""
        self._turn ^= 1
        slot = self._slots[self._turn]
        if slot is None or _bytes(slot).numel() < size:
            if isinstance(slot, Segment):
                slot.close()
            if self._on_gpu:
                slot = torch.empty(size, dtype=torch.uint8, device=self._device)
            else:
                slot = Segment(size, pinned=self._device.type == "cuda")
            self._slots[self._turn] = slot
        return _bytes(slot)

    def _send(self, bucket: Bucket, **keywords: Any) -> None:
        self._sent()
        request = {
            "operation": "load",
            "names": bucket.names,
            "dtypes": bucket.dtypes,
            "shapes": bucket.shapes,
        }
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        slot = self._slots[self._turn]
        if isinstance(slot, Segment):
            message = serialized(request | {"source": slot.source(bucket.data.numel())})
        else:
            message = _with_ipc_handles(request, bucket.data)
        self._calls = EngineCalls.to_all(
            self._engines, RemoteEngine.update_weights_from_tensor, message, LOADER, **keywords
        )

    def _leave(self, *, broken: bool) -> None:
        for slot in self._slots:
            if isinstance(slot, Segment):
                slot.close()
        self._slots = [None, None]


def _bytes(slot: Segment | Tensor) -> Tensor:
    return slot.data if isinstance(slot, Segment) else slot


def _with_ipc_handles(request: dict[str, Any], data: Tensor) -> bytes:
    """Return a pickle of ``request`` and a handle of ``data``, both in GPU memory."""
    buffer = io.BytesIO()
    ForkingPickler(buffer).dump([(REQUEST, request_tensor(request).to(data.device)), (DATA, data)])
    return buffer.getvalue()
