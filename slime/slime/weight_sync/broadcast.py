"""Weights by broadcast: trainer rank 0 sends flat buckets to the engines over one process group.

Guarantees: no request is refused (engines hold them from pause to continue); the first bucket is gathered before the pause,
so small models are held for the transfer only. The first engine that refuses or dies ends the update at once: that engine is
ended, because its weights may be half new, the others hold their requests, and all trainer ranks leave the collective
gathering together, so that connecting again and another push work and continue them. Rank 0 owns the group; the other
ranks only help to gather.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
from argparse import Namespace
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from slime.weight_sync.buckets import Bucket, BucketBuffer
from slime.weight_sync.engine_calls import EngineCalls
from slime.weight_sync.group import HostedGroup

logger = logging.getLogger(__name__)

CLEANUP_SECONDS = 30.0
JOIN_SECONDS = 5.0
"""How long the other engines have to reach the store of a group whose joining has failed; they serve meanwhile."""
GROUP_NUMBERS = itertools.count()


class BroadcastWeightSync:
    """See the module; one per trainer rank."""

    def __init__(self, args: Namespace, *, device: torch.device, address: str) -> None:
        """``address``: where engines reach trainer rank 0."""
        self._args = args
        self._device = device
        self._address = address
        self._buffer = BucketBuffer(args.update_weight_buffer_size, device)
        self._engines: list[Any] = []
        self._starts: list[int] = []
        self._group: HostedGroup | None = None
        self._members: dist.ProcessGroup | None = None
        self._calls: EngineCalls | None = None
        self._sending: Any = None

    def connect(self, engines: list[Any]) -> None:
        """Build the group with ``engines``, after leaving the previous one."""
        if dist.get_rank() != 0:
            return
        self._disconnect(engines)
        self._engines = list(engines)
        if not engines:
            return
        self._starts = self._call("starts")
        ranks = self._call("num_weight_ranks")
        offsets = [1 + sum(ranks[:index]) for index in range(len(ranks))]
        world_size = 1 + sum(ranks)
        name = f"slime-weights-{next(GROUP_NUMBERS)}"
        # NCCL refuses two ranks on one GPU.
        shared = getattr(self._args, "share_gpu", False)
        backend = "nccl" if self._device.type == "cuda" and not shared else "gloo"
        self._group = HostedGroup(
            address=self._address,
            world_size=world_size,
            name=name,
            backend=backend,
            timeout=timedelta(minutes=self._args.distributed_timeout_minutes),
        )
        own = [(self._address, self._group.port, offset, world_size, name, backend) for offset in offsets]
        try:
            joining = self._calls = EngineCalls.each(engines, "init_weights_update_group", own)
            try:
                joining.values()
            except Exception:
                # An engine that has yet to find the store would look for it until its own time-out; one that has is let go with it.
                joining.unanswered(JOIN_SECONDS)
                raise
            self._members = self._group.joined()
        except Exception:
            self._give_up()
            raise

    def push(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        """Send all weights and make them ``version``; collective over the trainer ranks."""
        buckets = self._buffer.fill(weights)
        if dist.get_rank() != 0 or not self._engines:
            collections.deque(buckets, maxlen=0)
            return
        try:
            if self._members is None:
                raise RuntimeError("the engines are in no weight update group; connect first")
            self._push(buckets, version)
        except Exception:
            self._give_up()
            raise
        finally:
            collections.deque(buckets, maxlen=0)

    def _push(self, buckets: Iterator[Bucket], version: str) -> None:
        bucket = next(buckets)
        mode = self._args.weight_update_mode
        self._call("pause_generation", mode)
        self._call("begin_weight_update")
        self._send(bucket, mode, version)
        for bucket in buckets:
            self._send(bucket, mode, version)
        self._call("end_weight_update")
        self._call("continue_generation")

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        self._calls = EngineCalls(self._engines, method, *arguments)
        return self._calls.values()

    def _send(self, bucket: Bucket, mode: str, version: str) -> None:
        """Broadcast one bucket. The last one sets the version and, where requests are retracted, empties the prefix cache."""
        assert self._group is not None
        self._calls = EngineCalls(
            self._engines,
            "update_weights_from_distributed",
            bucket.names,
            bucket.dtypes,
            bucket.shapes,
            self._group.name,
            flush_cache=bucket.is_last and mode == "retract",
            weight_version=version if bucket.is_last else None,
            load_format="flattened_bucket",
        )
        self._sending = dist.broadcast(bucket.data, src=0, group=self._members, async_op=True)
        self._calls.values()  # an engine that refuses never takes its part of the broadcast
        self._sending.wait()
        self._sending = None

    def _give_up(self) -> None:
        """End the engines that failed, leave the group, and let the others hold their requests with half new weights."""
        failed = self._calls.failed() if self._calls is not None else []
        self._calls = None
        self._end(failed)
        if self._sending is not None and self._device.type != "cuda":
            with contextlib.suppress(RuntimeError):  # it fails because the engine is gone
                self._sending.wait(timedelta(seconds=CLEANUP_SECONDS))
        self._sending = None
        name = self._group.name if self._group is not None else ""
        self._leave(broken=True)
        kept = [index for index in range(len(self._engines)) if index not in failed]
        for method, arguments in (("hold_after_failed_update", ()), ("destroy_weights_update_group", (name,))):
            calls = EngineCalls([self._engines[index] for index in kept], method, *arguments)
            lost = [kept[position] for position in calls.unanswered(CLEANUP_SECONDS)]
            self._end(lost)
            kept = [index for index in kept if index not in lost]

    def _end(self, positions: list[int]) -> None:
        """End engines, unless they were started again since they joined; the manager starts them again."""
        for position in positions:
            logger.error("policy engine %d failed in a weight update and is ended", position)
            starts = self._starts[position] if position < len(self._starts) else 0
            EngineCalls([self._engines[position]], "end_failed_update", starts).unanswered(CLEANUP_SECONDS)

    def _leave(self, *, broken: bool = False) -> None:
        group, self._group, self._members = self._group, None, None
        if group is not None:
            group.close(broken=broken)

    def _disconnect(self, engines: list[Any]) -> None:
        if self._group is None:
            return
        calls = EngineCalls(engines, "destroy_weights_update_group", self._group.name)
        for position in calls.unanswered(CLEANUP_SECONDS):
            logger.warning("policy engine %d was not in the weight update group %s", position, self._group.name)
        self._leave()

    def close(self) -> None:
        """Leave the group without talking to the engines, which may be gone."""
        self._leave()
