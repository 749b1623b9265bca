"""Push weights through shared memory to engines on the trainer's machine.

With a CUDA trainer two large slots alternate, so the trainer packs one while the engines load the other. If trainer and
engines share one GPU (``--share-gpu``, ``--colocate`` with one GPU), the slots are in its memory and the engine gets CUDA
IPC handles. Otherwise they are host memory, pinned in a trainer and in engines on CUDA. Slots are
kept until the transport is closed, handles until the next connection, and an engine's mappings until it ends or has another
trainer; so a push after the first opens, pins and allocates nothing.

Nobody waits for a whole device. A slot may be read once the event after its packing is over (`Bucket.ready`): the trainer
waits for it before it sends the request, which orders the copies before any read, in whatever process. A slot may be
written again once the engines have answered its request, and they answer after the event that follows their copies out of
it (`engine_loader`). So one event of each side covers a slot's whole turn. No event crosses between processes: the request
carries the order, and the trainer's wait is over by then, because packing runs while the engines load the other slot.

On a CPU the weights stream through the processor's cache (`slime.weight_sync.segments`): one request per push carries all
weights, whatever their size; trainer and engines copy concurrently and share 16 MiB. A separate request sets the version,
after all ranks of all engines have all weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.memory_budget.shape import policy_shape
from slime.arguments.memory_budget.trainer import largest_bytes
from slime.arguments.trainer import on_one_gpu, slot_bytes
from slime.weight_sync import LOADER
from slime.weight_sync.engine_sync import EngineWeightSync
from slime.weight_sync.remote_engine import EngineCalls, RemoteEngine
from slime.weight_sync.requests import Bucket, BucketBuffer, cast, serialized
from slime.weight_sync.segments import DeviceSegment, Segment, StreamWriter, check_same_host


class SharedMemoryWeightSync(EngineWeightSync):
    """See the module."""

    def __init__(self, args: Arguments, *, device: torch.device, address: str) -> None:
        super().__init__(args, device=device, address=address)
        self._on_gpu = device.type == "cuda" and on_one_gpu(args)
        self._buffer = BucketBuffer(slot_bytes(args), device, self._dtype, self._slot, staged=not self._on_gpu)
        self._slots: list[Segment | DeviceSegment | None] = [None, None]
        # An engine keeps a slot that is too small until it has the larger one, for which the memory plan has no room. A tied
        # model's embedding comes first, so its slot is large from the start; an LM head may need the other slot.
        shape = policy_shape(args)
        self._least = 0 if shape is None or shape.tied else largest_bytes(args, shape)

    def _join(self) -> None:
        check_same_host(self._call(RemoteEngine.hosts))
        if self._on_gpu and sum(self._call(RemoteEngine.num_weight_ranks)) != 1:
            raise ConfigError(
                "--update-weight-transport shared with --share-gpu is for one engine on one GPU; use nccl"
            )

    def _slot(self, turn: int, size: int) -> Tensor:
        """Return slot ``turn``, which no engine reads: :meth:`_send` waits for a bucket before it sends the next."""
        slot, size = self._slots[turn], max(size, self._least)
        if slot is None or slot.data.numel() < size:
            if slot is not None:
                slot.close()
            if self._on_gpu:
                slot = DeviceSegment(size, self._device)
            else:
                slot = Segment(size, pinned=self._device.type == "cuda")
            self._slots[turn] = slot
        return slot.data

    def _send(self, bucket: Bucket, **keywords: Any) -> None:
        self._sent()
        if bucket.ready is not None:
            bucket.ready.synchronize()
        request = {
            "operation": "load",
            "names": bucket.names,
            "dtypes": bucket.dtypes,
            "shapes": bucket.shapes,
            "source": self._holding(bucket).source(bucket.data.numel()),
        }
        self._calls = EngineCalls.to_all(
            self._engines, RemoteEngine.update_weights_from_tensor, serialized(request), LOADER, **keywords
        )

    def _holding(self, bucket: Bucket) -> Segment | DeviceSegment:
        return next(slot for slot in self._slots if slot and slot.data.data_ptr() == bucket.data.data_ptr())

    def _leave(self, *, broken: bool) -> None:
        """Keep the slots: no engine of a failed push reads them any more, because it has ended or has answered since."""
        for slot in self._slots:
            if isinstance(slot, DeviceSegment):
                slot.renew()

    def close(self) -> None:
        """See `EngineWeightSync.close`; releases the slots."""
        super().close()
        for slot in filter(None, self._slots):
            slot.close()
        self._slots = [None, None]


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
        weights = cast(weights, self._dtype)
        gathered = self._gathered(weights)
        self._open()
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
