"""A process group of one trainer rank and the engines' ranks, which share no default group.

PyTorch builds such a group from a separate store, where each member registers its rank. The trainer is rank 0 and hosts it.

Guarantees:

* Closing a :class:`HostedGroup` returns within ``LEAVE_SECONDS`` and ends every wait for missing members, in all processes.
* A group whose members may be gone is aborted, never destroyed, because destroying an NCCL communicator waits for all
  members. Gloo has no abort: an operation ends when the member it waits for ends.
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

from slime.utils.tcp_store import hosted_store, meet_on_loopback

logger = logging.getLogger(__name__)

LEAVE_SECONDS = 10.0
"""Time for the library to abort or destroy a group; NCCL cannot abort a communicator that has not connected yet."""


def join_group(
    *, address: str, port: int, rank: int, world_size: int, name: str, backend: str, timeout: timedelta
) -> dist.ProcessGroup:
    """Join the group ``name`` as ``rank``.

    Gloo blocks until all ``world_size`` members have joined, at most for ``timeout``. NCCL connects in the first operation.
    """
    meet_on_loopback(address)
    store = TCPStore(address, port, world_size, False, timeout, wait_for_workers=False)
    joined, _ = _new_process_group_helper(
        world_size, rank, [], Backend(backend), PrefixStore(name, store), group_name=GroupName(name), timeout=timeout
    )
    assert isinstance(joined, dist.ProcessGroup)
    # Collectives look ranks up here; the public way makes a group of the default one's members only.
    _world.pg_group_ranks[joined] = {member: member for member in range(world_size)}
    return joined


def group_named(name: str) -> dist.ProcessGroup:
    """Return this process's group ``name``.

    Raises:
        LookupError: this process has not joined a group of that name.
    """
    for group, known in _world.pg_names.items():
        if known == name:
            return group
    raise LookupError(f"this process has not joined a group {name}")


class HostedGroup:
    """Rank 0's side of a group: the store's server, and the membership once all others have joined."""

    def __init__(self, *, address: str, world_size: int, name: str, backend: str, timeout: timedelta) -> None:
        """Open the store on a free ``port`` and start to join."""
        self.name = name
        server = hosted_store(address, world_size=world_size, timeout=timeout)
        self._server: TCPStore | None = server
        self.port: int = server.port
        self._group: dist.ProcessGroup | None = None
        thread = ThreadPoolExecutor(1, thread_name_prefix="join-group")
        # Joins as a client of the server above, so that closing the server also ends this process's wait.
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
        """Return the group once all others have joined."""
        if self._group is None:
            self._group = self._joining.result()
            self._joining = Future()  # drops its reference: a gloo group frees its members with the last one
        return self._group

    def broadcast(self, data: Tensor) -> None:
        """Send ``data`` to all members and wait until they have it; with NCCL only enqueue it on the stream.

        Raises:
            RuntimeError: this process has left the group.
        """
        group = self._group
        if group is None:  # torch would take None for the group of all trainer ranks
            raise RuntimeError(f"{self.name} was closed before the broadcast began")
        broadcast(data, src=0, group=group)

    def close(self, *, broken: bool = False) -> None:
        """Leave the group, or stop waiting for it; other members' waits in it fail.

        ``broken``: a member may be gone, or a running operation may never end by itself.
        """
        self._server = None
        group, self._group = self._group, None
        if group is None:
            self._joining.add_done_callback(_leave_unused)  # this process may have joined although others failed
            return
        done = _in_background(_abort_process_group if broken else destroy_process_group, group)
        if not done.wait(LEAVE_SECONDS):
            logger.warning("leaving %s takes over %.0f s; it continues in the background", self.name, LEAVE_SECONDS)


def _in_background(leave: Callable[[Any], None], group: dist.ProcessGroup) -> threading.Event:
    """Call ``leave(group)`` in a daemon thread; the event is set once it has returned."""
    done = threading.Event()

    def run() -> None:
        try:
            leave(group)
        except (RuntimeError, ValueError) as error:
            logger.warning("could not leave a weight update group cleanly: %s", error)
        finally:
            done.set()

    threading.Thread(target=run, name="leave-group", daemon=True).start()
    return done


def _leave_unused(joining: Future[dist.ProcessGroup]) -> None:
    if joining.exception() is None:
        _in_background(_abort_process_group, joining.result()).wait(LEAVE_SECONDS)
