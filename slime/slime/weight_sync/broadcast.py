"""Weights by broadcast: trainer rank 0 sends flat buckets to the engines over one process group (NCCL, or gloo on a CPU).

Rank 0 owns the group. The order of an update and what happens when an engine fails are `EngineWeightSync`'s.
"""

from __future__ import annotations

import contextlib
import itertools
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from slime.weight_sync import shares_gpus
from slime.weight_sync.buckets import Bucket
from slime.weight_sync.engine_calls import EngineCalls
from slime.weight_sync.engine_sync import CLEANUP_SECONDS, EngineWeightSync
from slime.weight_sync.group import HostedGroup

JOIN_SECONDS = 20.0
"""How long the other engines have to reach the store of a group whose joining has failed; they serve meanwhile.

A new connection of torch asks the name service, which gives up on two lost answers after ten seconds."""
GROUP_NUMBERS = itertools.count()


class BroadcastWeightSync(EngineWeightSync):
    """See the module."""

    _group: HostedGroup | None = None
    _members: dist.ProcessGroup | None = None
    _sending: Any = None

    def _join(self) -> None:
        ranks = self._call("num_weight_ranks")
        offsets = [1 + sum(ranks[:index]) for index in range(len(ranks))]
        world_size = 1 + sum(ranks)
        name = f"slime-weights-{next(GROUP_NUMBERS)}"
        # NCCL refuses two ranks on one GPU.
        backend = "nccl" if self._device.type == "cuda" and not shares_gpus(self._args) else "gloo"
        self._group = HostedGroup(
            address=self._address,
            world_size=world_size,
            name=name,
            backend=backend,
            timeout=timedelta(minutes=self._args.distributed_timeout_minutes),
        )
        own = [(self._address, self._group.port, offset, world_size, name, backend) for offset in offsets]
        joining = self._calls = EngineCalls.each(self._engines, "init_weights_update_group", own)
        try:
            joining.values()
        except Exception:
            # An engine that has yet to find the store would look for it until its own time-out; one that has is let go with it.
            joining.unanswered(JOIN_SECONDS)
            raise
        self._members = self._group.joined()

    def _send(self, bucket: Bucket, **keywords: Any) -> None:
        assert self._group is not None
        self._calls = EngineCalls(
            self._engines,
            "update_weights_from_distributed",
            bucket.names,
            bucket.dtypes,
            bucket.shapes,
            self._group.name,
            load_format="flattened_bucket",
            **keywords,
        )
        self._broadcast(bucket.data)

    def _broadcast(self, data: Tensor) -> None:
        """Broadcast ``data`` while the engines' calls are under way; return when they have loaded it."""
        assert self._calls is not None
        self._sending = dist.broadcast(data, src=0, group=self._members, async_op=True)
        self._calls.values()  # an engine that refuses never takes its part of the broadcast
        self._sending.wait()
        self._sending = None

    def _farewell(self) -> list[tuple[str, tuple[Any, ...]]]:
        return [] if self._group is None else [("destroy_weights_update_group", (self._group.name,))]

    def _leave(self, *, broken: bool) -> None:
        if self._sending is not None and self._device.type != "cuda":
            with contextlib.suppress(RuntimeError):  # it fails because the engine is gone
                self._sending.wait(timedelta(seconds=CLEANUP_SECONDS))
        self._sending = None
        group, self._group, self._members = self._group, None, None
        if group is not None:
            group.close(broken=broken)
