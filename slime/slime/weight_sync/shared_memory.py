"""Push weights through shared memory to engines on the trainer's machine.

With a CUDA trainer two segments alternate, so the trainer fills one while the engines load the other. The trainer copies
each byte once, as does each engine rank. Both segments stay mapped between pushes. If trainer and engines share one GPU
(``--share-gpu``, ``--colocate`` with one GPU), the segments are in its memory and the engine gets CUDA IPC handles.
Otherwise they are host memory, pinned in a trainer on CUDA.

On a CPU the weights stream through the processor's cache (`slime.weight_sync.segments`): one request per push carries all
weights, whatever their size; trainer and engines copy concurrently and share 16 MiB. A separate request sets the version,
after all ranks of all engines have all weights.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.trainer import on_one_gpu
from slime.weight_sync import LOADER
from slime.weight_sync.engine_sync import EngineWeightSync
from slime.weight_sync.remote_engine import EngineCalls, RemoteEngine
from slime.weight_sync.requests import DATA, REQUEST, Bucket, BucketBuffer, request_tensor, serialized
from slime.weight_sync.segments import Segment, StreamWriter, check_same_host

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


class StreamWeightSync(EngineWeightSync):
    """The transport of this module."""

    _writer: StreamWriter | None = None
    _requests: list[dict[str, Any]]

    def _join(self) -> None:
        check_same_host(self._call(RemoteEngine.hosts))
        ranks = self._call(RemoteEngine.num_weight_ranks)
        self._writer = StreamWriter(sum(ranks))
        sources = iter(self._writer.sources())
        self._requests = [{"operation": "stream", "sources": list(itertools.islice(sources, count))} for count in ranks]

    def _transfer(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        assert self._writer is not None
        gathered = self._gathered(weights)
        self._pause()
        self._call(RemoteEngine.begin_weight_update)
        messages = [(serialized(request), LOADER) for request in self._requests]
        self._calls = EngineCalls.to_each(self._engines, RemoteEngine.update_weights_from_tensor, messages)
        for name, tensor in itertools.chain(gathered, weights):
            self._writer.send(name, tensor, self._calls.check_none_ended)
        self._writer.end(self._calls.check_none_ended)
        self._calls.values()
        self._call(
            RemoteEngine.update_weights_from_tensor,
            serialized({"operation": "nothing"}),
            LOADER,
            flush_cache=self._flushes(),
            weight_version=version,
        )

    def _gathered(self, weights: Iterator[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        """Return the first weights, about one bucket of them, gathered while engines still serve requests."""
        parts, size = [], 0
        for name, tensor in weights:
            parts.append((name, tensor))
            size += tensor.nbytes
            if size >= self._args.update_weight_buffer_size:
                break
        return parts

    def _leave(self, *, broken: bool) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None
