"""A process group between processes that do not share a default group: one trainer rank and the engines' ranks.

PyTorch builds such a group from a store of its own, where each member says its rank; the trainer is rank 0 and hosts the store.
Guarantees: closing a :class:`HostedGroup` returns within ``LEAVE_SECONDS`` and ends every wait for members that have not joined,
in this process and in the others. A group whose members may be gone is aborted, never destroyed: destroying an NCCL
communicator waits for all of them. Gloo has no abort; an operation on it ends when the member it waits for ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.distributed_c10d import (
    Backend,
    GroupName,
    PrefixStore,
    _abort_process_group,
    _new_process_group_helper,
    _world,
    broadcast,
    destroy_process_group,
)

logger = logging.getLogger(__name__)

LEAVE_SECONDS = 10.0
"""For the library to abort or destroy a group; NCCL cannot abort a communicator that has yet to connect."""


def join_group(
    *, address: str, port: int, rank: int, world_size: int, name: str, backend: str, timeout: timedelta
) -> dist.ProcessGroup:
    """Join the group ``name`` as ``rank``.

    Gloo blocks until all ``world_size`` members have joined, ``timeout`` at most; NCCL connects in the first operation.
    """
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
        if self._group is None:
            self._group = self._joining.result()
            self._joining = Future()  # keeps no reference: members of a gloo group are let go with the last one
        return self._group

    def broadcast(self, data: Tensor) -> None:
        """Send ``data`` to all members; blocks until they have it, or for NCCL until the stream will have sent it.

        Raises:
            RuntimeError: the group was left.
        """
        group = self._group
        if group is None:  # which torch would take for the group of all trainer ranks
            raise RuntimeError(f"{self.name} was left before the broadcast began")
        broadcast(data, src=0, group=group)

    def close(self, *, broken: bool = False) -> None:
        """Leave the group, or stop waiting for it; what another member waits for in it fails.

        ``broken``: a member may be gone, or an operation under way may never end by itself.
        """
        self._server = None
        group, self._group = self._group, None
        if group is None:
            self._joining.add_done_callback(_leave_unused)  # this process may have joined what others failed to
            return
        done = _in_background(_abort_process_group if broken else destroy_process_group, group)
        if not done.wait(LEAVE_SECONDS):
            logger.warning("leaving %s takes over %.0f s; its thread is left behind", self.name, LEAVE_SECONDS)


def _in_background(leave: Callable[[Any], None], group: dist.ProcessGroup) -> threading.Event:
    """Call ``leave(group)`` in a daemon thread; the event says that it has returned."""
    done = threading.Event()

    def run() -> None:
        try:
            leave(group)
        except (RuntimeError, ValueError) as error:
            logger.warning("a weight update group could not be left cleanly: %s", error)
        finally:
            done.set()

    threading.Thread(target=run, name="leave-group", daemon=True).start()
    return done


def _leave_unused(joining: Future[dist.ProcessGroup]) -> None:
    if joining.exception() is None:
        _in_background(_abort_process_group, joining.result()).wait(LEAVE_SECONDS)
