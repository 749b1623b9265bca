"""Broadcast whole weights, or their changes (`slime.weight_sync.delta`), from trainer rank 0 to the engines.

Rank 0 owns the process group (NCCL, or gloo on a CPU). While it broadcasts a flat bucket and the engines load it, the
trainer gathers and packs the next one. The broadcast runs in a thread of its own, because NCCL connects in the first
broadcast and blocks the calling thread until all members have joined or the group ends. `EngineWeightSync` defines the
order of an update and what happens to the engines when it fails.

Guarantees:

* An engine that refuses or dies ends the push at once, because rank 0 waits for the engines' calls and the broadcast
  together. This holds even for a communicator that connects in its first broadcast.
* An engine that hangs ends the push after half of ``--distributed-timeout-minutes`` per bucket, before the other trainer
  ranks time out.
* A broadcast that never ends does not keep the process alive, because the thread is a daemon.
* On CUDA, a broadcast waits for the caller's earlier kernels and runs on its own stream, concurrently with later ones. It is
  done once its bytes have left the buffer.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Protocol

import torch
from torch import Tensor

from slime.args import Arguments
from slime.arguments.trainer import shares_gpus
from slime.weight_sync import LOADER
from slime.weight_sync.delta import Change, Sender
from slime.weight_sync.engine_sync import CLEANUP_SECONDS, EngineWeightSync
from slime.weight_sync.group import HostedGroup
from slime.weight_sync.remote_engine import EngineCalls, RemoteEngine
from slime.weight_sync.requests import Bucket, BucketBuffer, cast, serialized


class Group(Protocol):
    """A joined group in which this process is rank 0."""

    def broadcast(self, data: Tensor) -> None:
        """Send ``data`` to all members."""
        ...


class Broadcaster:
    """Owns the thread of one group."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self._queue: SimpleQueue[tuple[Tensor, Any, Future[None]] | None] = SimpleQueue()
        threading.Thread(target=_run, args=(group, device, self._queue), name="send-weights", daemon=True).start()

    def send(self, data: Tensor) -> Future[None]:
        """Start to broadcast ``data``, which must not change until the future is done."""
        sending: Future[None] = Future()
        ready = torch.cuda.current_stream(data.device).record_event() if data.is_cuda else None
        self._queue.put((data, ready, sending))
        return sending

    def close(self) -> None:
        """End the thread after the current broadcast."""
        self._queue.put(None)


def _run(group: Group, device: torch.device, queue: SimpleQueue[tuple[Tensor, Any, Future[None]] | None]) -> None:
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    while (item := queue.get()) is not None:
        data, ready, sending = item
        try:
            if stream is None or ready is None:
                group.broadcast(data)
            else:
                with torch.cuda.device(device), torch.cuda.stream(stream):
                    stream.wait_event(ready)
                    group.broadcast(data)
                    stream.synchronize()
        except Exception as error:  # noqa: BLE001 - `Future.result` raises it in the caller
            # The traceback would keep a reference to the group; a gloo group frees its members with the last reference.
            sending.set_exception(error.with_traceback(None))
        else:
            sending.set_result(None)
        del item, data, ready, sending  # or they live until the next bucket comes


JOIN_SECONDS = 20.0
"""After joining failed: how long the other engines may take to reach the group's store; they serve meanwhile.

A new torch connection does a name lookup, which gives up on two lost answers after ten seconds."""
RELEASE_SECONDS = 20.0
"""How long healthy engines may take to return from a broadcast after rank 0 left the group; a stuck engine is ended."""
GLOO_BUCKET_BYTES = 24 << 20
"""Largest bucket over gloo, small enough for the engine's allocator to reuse the same warm memory for each bucket.

The C library maps fresh memory for anything over 32 MiB, and its page faults cost more than the transfer."""
GROUP_NUMBERS = itertools.count()


class BroadcastWeightSync(EngineWeightSync):
    """The transport of this module."""

    _group: HostedGroup | None = None
    _broadcaster: Broadcaster | None = None
    _sending: Future[None] | None = None

    def __init__(self, args: Arguments, *, device: torch.device, address: str) -> None:
        super().__init__(args, device=device, address=address)
        # NCCL refuses two ranks on one GPU.
        self._backend = "nccl" if device.type == "cuda" and not shares_gpus(args) else "gloo"
        if self._backend == "gloo":
            self._buffer = BucketBuffer(min(args.update_weight_buffer_size, GLOO_BUCKET_BYTES), device, self._dtype)
        self._patience = 60.0 * args.distributed_timeout_minutes / 2

    def _join(self) -> None:
        ranks = self._call(RemoteEngine.num_weight_ranks)
        offsets = [1 + sum(ranks[:index]) for index in range(len(ranks))]  # rank 0 is this process
        world_size = 1 + sum(ranks)
        name = f"slime-weights-{next(GROUP_NUMBERS)}"
        self._group = HostedGroup(
            address=self._address,
            world_size=world_size,
            name=name,
            backend=self._backend,
            timeout=timedelta(minutes=self._args.distributed_timeout_minutes),
        )
        own = [(self._address, self._group.port, offset, world_size, name, self._backend) for offset in offsets]
        joining = self._calls = EngineCalls.to_each(self._engines, RemoteEngine.init_weights_update_group, own)
        try:
            joining.finish(self._patience)
        except Exception:
            # An engine that has not reached the store yet would search until its own time-out; closing frees the others.
            joining.unanswered(JOIN_SECONDS)
            raise
        self._group.joined()
        self._broadcaster = Broadcaster(self._group, self._device)

    def _send(self, bucket: Bucket, **keywords: Any) -> None:
        assert self._group is not None
        name = self._group.name
        self._begin(
            bucket.data,
            lambda: EngineCalls.to_all(
                self._engines,
                RemoteEngine.update_weights_from_distributed,
                bucket.names,
                bucket.dtypes,
                bucket.shapes,
                name,
                load_format="flattened_bucket",
                **keywords,
            ),
        )

    def _begin(self, data: Tensor, call: Callable[[], EngineCalls[None]]) -> None:
        """Start the engines' ``call`` and the broadcast of ``data``, once the engines have the previous bucket."""
        assert self._broadcaster is not None
        self._sent()
        # Neither ends without the other: engines wait in their call for the broadcast, and the broadcast for all engines.
        self._calls = call()
        self._sending = self._broadcaster.send(data) if data.numel() else None

    def _sent(self) -> None:
        if self._calls is not None:
            self._calls.finish(self._patience, self._sending)
        self._sending = None

    def _farewell(self) -> Callable[[Sequence[RemoteEngine]], EngineCalls[None]] | None:
        if self._group is None:
            return None
        name = self._group.name
        return lambda engines: EngineCalls.to_all(engines, RemoteEngine.destroy_weights_update_group, name)

    def _abandon(self, calls: EngineCalls[Any], failed: list[int]) -> list[int]:
        """Abort the broadcast and return the engines stuck in it; see `EngineWeightSync._abandon`."""
        sending = [self._sending] if self._sending is not None else []
        if self._backend == "gloo":
            # Gloo has no abort. An external engine that refused frees rank 0 by leaving the group.
            if farewell := self._farewell():
                farewell([self._engines[index] for index in failed]).unanswered(CLEANUP_SECONDS)
            wait(sending, timeout=RELEASE_SECONDS)
        self._leave(broken=True)
        if not sending:  # no engine is stuck in a broadcast; a slow one is asked to hold its requests
            return []
        wait(sending, timeout=RELEASE_SECONDS)
        return [index for index in calls.still_open(RELEASE_SECONDS) if index not in failed]

    def _leave(self, *, broken: bool) -> None:
        group, self._group = self._group, None
        broadcaster, self._broadcaster = self._broadcaster, None
        self._sending = None
        if broadcaster is not None:
            broadcaster.close()
        if group is not None:
            group.close(broken=broken)


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
        parts = self._sender.changes(cast(weights, self._dtype), self._args.update_weight_buffer_size)
        part, last = next(parts)
        self._open()
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
