"""Fail on all ranks if one fails, so that no rank hangs in a collective, for example on a full disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from slime.exceptions import CheckpointError

logger = logging.getLogger(__name__)


def on_all_ranks(action: Callable[[], None]) -> None:
    """Run ``action`` on every rank and return once all ranks are done.

    Without a process group there is one rank. ``action`` must not communicate with other ranks: if one failed, the others
    would hang in their collective.

    Raises:
        CheckpointError: another rank failed; the message is that of the first one. A rank that failed raises its own error.
    """
    if not dist.is_initialized():
        action()
        return
    failure: Exception | None = None
    try:
        action()
    except Exception as error:
        logger.exception("this rank failed; all ranks will stop")
        failure = error
    failures: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(failures, None if failure is None else f"{type(failure).__name__}: {failure}")
    if failure is not None:
        raise failure
    for rank, words in enumerate(failures):
        if words is not None:
            raise CheckpointError(f"rank {rank} could not write: {words}")


def on_rank_zero(action: Callable[[], None]) -> None:
    """Run ``action`` on rank 0 only, and fail on all ranks if it fails (see :func:`on_all_ranks`)."""
    on_all_ranks(action if not dist.is_initialized() or dist.get_rank() == 0 else lambda: None)
