"""Weights by broadcast: trainer rank 0 sends flat buckets to the engines over one process group.

Guarantees: no request is refused (engines hold them from pause to continue); the first bucket is gathered before the pause,
so small models are held for the transfer only; after a failure engines hold their requests and all trainer ranks leave
the collective gathering together, so a later push works and continues them. Rank 0 owns the group; the other ranks only help to gather.
"""

from __future__ import annotations

import collections
import itertools
import logging
from argparse import Namespace
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from slime.backends.fsdp_utils.model import DTYPES, PolicyModel
from slime.backends.fsdp_utils.weights import full_weights
from slime.utils.http_utils import find_available_port
from slime.weight_sync.buckets import Bucket, BucketBuffer
from slime.weight_sync.group import create_group

logger = logging.getLogger(__name__)


def _get(references: list[Any]) -> list[Any]:
    import ray

    return ray.get(references)


class BroadcastWeightSync:
    """See the module; one per trainer rank."""

    def __init__(self, args: Namespace, *, device: torch.device, address: str) -> None:
        """``address``: where engines reach trainer rank 0."""
        self._args = args
        self._device = device
        self._address = address
        self._dtype = DTYPES[args.train_dtype]
        self._buffer = BucketBuffer(args.update_weight_buffer_size, device)
        self._engines: list[Any] = []
        self._group: dist.ProcessGroup | None = None
        self._numbers = itertools.count()
        self._name = ""

    def connect(self, engines: list[Any]) -> None:
        """Build the group with ``engines``, after leaving the previous one."""
        if dist.get_rank() != 0:
            return
        self._disconnect(engines)
        self._engines = list(engines)
        if not engines:
            return
        ranks = _get([engine.num_weight_ranks.remote() for engine in engines])
        offsets = [1 + sum(ranks[:index]) for index in range(len(ranks))]
        world_size = 1 + sum(ranks)
        port = find_available_port(self._address)
        self._name = f"slime-weights-{next(self._numbers)}"
        backend = "nccl" if self._device.type == "cuda" else "gloo"
        joining = [
            engine.init_weights_update_group.remote(self._address, port, offset, world_size, self._name, backend)
            for engine, offset in zip(engines, offsets, strict=True)
        ]
        self._group = create_group(
            address=self._address,
            port=port,
            rank=0,
            world_size=world_size,
            name=self._name,
            backend=backend,
            timeout=timedelta(minutes=self._args.distributed_timeout_minutes),
        )
        _get(joining)

    def push(self, policy: PolicyModel, version: str) -> None:
        """Send all weights and make them ``version``; collective over the trainer ranks."""
        buckets = self._buffer.fill(full_weights(policy, dtype=self._dtype, device=self._device))
        if dist.get_rank() != 0 or not self._engines:
            collections.deque(buckets, maxlen=0)
            return
        try:
            self._push(buckets, version)
        except Exception:
            self._close_sessions()
            raise
        finally:
            collections.deque(buckets, maxlen=0)

    def _push(self, buckets: Iterator[Bucket], version: str) -> None:
        bucket = next(buckets)
        mode = self._args.weight_update_mode
        _get([engine.pause_generation.remote(mode) for engine in self._engines])
        _get([engine.begin_weight_update.remote() for engine in self._engines])
        self._send(bucket, mode, version)
        for bucket in buckets:
            self._send(bucket, mode, version)
        _get([engine.end_weight_update.remote() for engine in self._engines])
        _get([engine.continue_generation.remote() for engine in self._engines])

    def _send(self, bucket: Bucket, mode: str, version: str) -> None:
        """Broadcast one bucket. The last one sets the version and, where requests are retracted, empties the prefix cache."""
        receiving = [
            engine.update_weights_from_distributed.remote(
                bucket.names,
                bucket.dtypes,
                bucket.shapes,
                self._name,
                flush_cache=bucket.is_last and mode == "retract",
                weight_version=version if bucket.is_last else None,
                load_format="flattened_bucket",
            )
            for engine in self._engines
        ]
        dist.broadcast(bucket.data, src=0, group=self._group)
        _get(receiving)

    def _close_sessions(self) -> None:
        """Close the update on every engine that still answers; it holds its requests, as its weights may be half new."""
        for engine in self._engines:
            try:
                _get([engine.hold_after_failed_update.remote()])
            except Exception:  # the failure that led here is raised, this one is logged
                logger.exception("an engine could not be reset after a failed weight update")

    def _disconnect(self, engines: list[Any]) -> None:
        if self._group is None:
            return
        for engine in engines:
            try:
                _get([engine.destroy_weights_update_group.remote(self._name)])
            except Exception:  # an engine that was started again is not in the old group
                logger.warning("an engine was not in the weight update group %s", self._name, exc_info=True)
        dist.destroy_process_group(self._group)
        self._group = None

    def close(self) -> None:
        """Leave the group without talking to the engines, which may be gone."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None
