"""A process group between processes that do not share a default group: one trainer rank and the engines' ranks.

PyTorch builds such a group from a store of its own, where each member says its rank; the trainer is rank 0 and hosts the store.
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import (
    Backend,
    GroupName,
    PrefixStore,
    _new_process_group_helper,
    _world,
)
from torch.distributed.rendezvous import rendezvous


def create_group(
    *, address: str, port: int, rank: int, world_size: int, name: str, backend: str, timeout: timedelta
) -> dist.ProcessGroup:
    """Join the group ``name`` as ``rank``; blocks until all ``world_size`` members have."""
    store, _, _ = next(rendezvous(f"tcp://{address}:{port}", rank, world_size, timeout=timeout))
    store.set_timeout(timeout)
    joined, _ = _new_process_group_helper(
        world_size, rank, [], Backend(backend), PrefixStore(name, store), group_name=GroupName(name), timeout=timeout
    )
    assert isinstance(joined, dist.ProcessGroup)
    _world.pg_group_ranks[joined] = {member: member for member in range(world_size)}
    return joined
