"""Weights by broadcast: trainer rank 0 sends flat buckets to the engines over one process group (NCCL, or gloo on a CPU).

Rank 0 owns the group. While a bucket is broadcast and loaded, the next one is gathered and packed. Guarantees: rank 0 waits for the
engines' calls and for the broadcast together, so an engine that refuses or dies ends the push at once with any communicator,
also one that connects in its first broadcast; an engine that neither answers nor dies ends it after half of
``--distributed-timeout-minutes`` for one bucket, before the other trainer ranks lose patience with rank 0. The order of an update
and what becomes of the engines when it fails are `EngineWeightSync`'s.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from slime.args import Arguments
from slime.arguments.weight_sync import shares_gpus
from slime.weight_sync.broadcaster import Broadcaster
from slime.weight_sync.buckets import Bucket, BucketBuffer
from slime.weight_sync.engine_calls import EngineCalls
from slime.weight_sync.engine_sync import CLEANUP_SECONDS, EngineWeightSync
from slime.weight_sync.group import HostedGroup

JOIN_SECONDS = 20.0
"""How long the other engines have to reach the store of a group whose joining has failed; they serve meanwhile.

A new connection of torch asks the name service, which gives up on two lost answers after ten seconds."""
RELEASE_SECONDS = 20.0
"""For the engines that did nothing wrong to come out of a broadcast whose group was left; one that is stuck in it is ended."""
GLOO_BUCKET_BYTES = 24 << 20
"""At most so many bytes per bucket over gloo: the engine's allocator gives it the same, warm memory again for each of them.

The C library maps fresh memory for anything over 32 MiB, whose pages cost more than the transfer."""
GROUP_NUMBERS = itertools.count()


class BroadcastWeightSync(EngineWeightSync):
    """See the module."""

    _group: HostedGroup | None = None
    _broadcaster: Broadcaster | None = None
    _sending: Future[None] | None = None

    def __init__(self, args: Arguments, *, device: torch.device, address: str) -> None:
        super().__init__(args, device=device, address=address)
        # NCCL refuses two ranks on one GPU.
        self._backend = "nccl" if device.type == "cuda" and not shares_gpus(args) else "gloo"
        if self._backend == "gloo":
            self._buffer = BucketBuffer(min(args.update_weight_buffer_size, GLOO_BUCKET_BYTES), device)
        self._patience = 60.0 * args.distributed_timeout_minutes / 2

    def _join(self) -> None:
        ranks = self._call("num_weight_ranks")
        offsets = [1 + sum(ranks[:index]) for index in range(len(ranks))]
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
        joining = self._calls = EngineCalls.each(self._engines, "init_weights_update_group", own)
        try:
            joining.finish(self._patience)
        except Exception:
            # An engine that has yet to find the store would look for it until its own time-out; one that has is let go with it.
            joining.unanswered(JOIN_SECONDS)
            raise
        self._group.joined()
        self._broadcaster = Broadcaster(self._group, self._device)

    def _send(self, bucket: Bucket, **keywords: Any) -> None:
        assert self._group is not None
        name = self._group.name
        self._begin(
            bucket.data,
            lambda: EngineCalls(
                self._engines,
                "update_weights_from_distributed",
                bucket.names,
                bucket.dtypes,
                bucket.shapes,
                name,
                load_format="flattened_bucket",
                **keywords,
            ),
        )

    def _begin(self, data: Tensor, call: Callable[[], EngineCalls]) -> None:
        """Begin to broadcast ``data`` to the engines that ``call`` asks to receive it, once they have what was sent before."""
        assert self._broadcaster is not None
        self._sent()
        self._calls = call()
        self._sending = self._broadcaster.send(data) if data.numel() else None

    def _sent(self) -> None:
        if self._calls is not None:
            self._calls.finish(self._patience, self._sending)
        self._sending = None

    def _farewell(self) -> list[tuple[str, tuple[Any, ...]]]:
        return [] if self._group is None else [("destroy_weights_update_group", (self._group.name,))]

    def _abandon(self, calls: EngineCalls, failed: list[int]) -> list[int]:
        """See `EngineWeightSync._abandon`: abort, then see who comes out of the broadcast."""
        sending = [self._sending] if self._sending is not None else []
        if self._backend == "gloo":
            # Nothing aborts gloo. An engine that refused and is not ours to end frees rank 0 when it leaves the group.
            for method, arguments in self._farewell():
                EngineCalls([self._engines[index] for index in failed], method, *arguments).unanswered(CLEANUP_SECONDS)
            wait(sending, timeout=RELEASE_SECONDS)
        self._leave(broken=True)
        if not sending:  # nobody is stuck in a broadcast; who is slow in another call is asked to hold its requests
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
