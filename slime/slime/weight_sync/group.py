"""A process group between processes that do not share a default group: one trainer rank and the engines' ranks.

PyTorch builds such a group from a store of its own, where each member says its rank; the trainer is rank 0 and hosts the store.
Guarantees: closing a :class:`HostedGroup` ends every wait on it, in this process and in the members that are still joining.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.distributed_c10d import (
    Backend,
    GroupName,
    PrefixStore,
    _new_process_group_helper,
    _world,
)


def join_group(
    *, address: str, port: int, rank: int, world_size: int, name: str, backend: str, timeout: timedelta
) -> dist.ProcessGroup:
    """Join the group ``name`` as ``rank``; blocks until all ``world_size`` members have."""
    store = TCPStore(address, port, world_size, False, timeout, wait_for_workers=False)
    joined, _ = _new_process_group_helper(
        world_size, rank, [], Backend(backend), PrefixStore(name, store), group_name=GroupName(name), timeout=timeout
    )
    assert isinstance(joined, dist.ProcessGroup)
    _world.pg_group_ranks[joined] = {member: member for member in range(world_size)}
    return joined


def group_named(name: str) -> dist.ProcessGroup:
    """Return the group ``name`` of this process.

    Raises:
        LookupError: when it has joined none of that name.
    """
    for group, known in _world.pg_names.items():
        if known == name:
            return group
    raise LookupError(f"this process is in no group {name}")


class HostedGroup:
    """Rank 0's side of a group: the store's server, and the membership once all others have joined."""

    def __init__(self, *, address: str, world_size: int, name: str, backend: str, timeout: timedelta) -> None:
        """Open the store and begin to join; ``port`` is where the others find it."""
        self.name = name
        self._nccl = backend == "nccl"
        server = TCPStore(address, 0, world_size, True, timeout, wait_for_workers=False)
        self._server: TCPStore | None = server
        self.port: int = server.port
        self._group: dist.ProcessGroup | None = None
        thread = ThreadPoolExecutor(1, thread_name_prefix="join-group")
        # A client of the server above, so that closing the server ends the wait of this process too.
        self._joining: Future[dist.ProcessGroup] = thread.submit(
            join_group,
            address=address,
            port=self.port,
            rank=0,
            world_size=world_size,
            name=name,
            backend=backend,
            timeout=timeout,
        )
        thread.shutdown(wait=False)

    def joined(self) -> dist.ProcessGroup:
        """Return the group; blocks until all others have joined."""
        self._group = self._joining.result()
        return self._group

    def close(self, *, broken: bool = False) -> None:
        """Leave the group, or stop waiting for it; what another member waits for in it fails.

        ``broken``: an operation may be under way that never ends by itself.
        """
        self._server = None
        if self._group is None:
            self._joining.add_done_callback(_leave_unused)  # this process may have joined what others failed to
            return
        if broken and self._nccl:
            self._group.abort()
        dist.destroy_process_group(self._group)
        self._group = None


def _leave_unused(joining: Future[dist.ProcessGroup]) -> None:
    if joining.exception() is None:
        dist.destroy_process_group(joining.result())
