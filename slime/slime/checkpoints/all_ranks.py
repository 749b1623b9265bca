"""Work that fails on one rank and then fails on all: nobody waits in a collective for a rank whose disk is full."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from slime.exceptions import CheckpointError

logger = logging.getLogger(__name__)


def on_all_ranks(action: Callable[[], None]) -> None:
    """Run ``action`` on every rank; returns on all when it has ended on all. Without a process group there is one rank.

    ``action`` must not talk to other ranks: one that failed would leave the others in their collective.

    Raises:
        CheckpointError: on the ranks where it went well, with the words of the first rank where it did not; that one raises
            its own error.
    """
    if not dist.is_initialized():
        action()
        return
    failure: Exception | None = None
    try:
        action()
    except Exception as error:
        logger.exception("this rank failed; all ranks are told")
        failure = error
    said: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(said, None if failure is None else f"{type(failure).__name__}: {failure}")
    if failure is not None:
        raise failure
    for rank, words in enumerate(said):
        if words is not None:
            raise CheckpointError(f"rank {rank} could not write: {words}")


def on_rank_zero(action: Callable[[], None]) -> None:
    """Run ``action`` on rank 0 alone; otherwise as :func:`on_all_ranks`."""
    on_all_ranks(action if not dist.is_initialized() or dist.get_rank() == 0 else lambda: None)
