"""New processes for tests that need torch: forked from one that has imported it, so that none pays for that again.

The server holds no thread and no group of processes, only modules; what is forked from it is as fresh as a spawned one.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

IMPORTED = ["torch", "torch.distributed.fsdp", "transformers", "peft"]
"""Installed packages only: the server does not know pytest's paths."""


def ready_to_fork() -> ForkServerContext:
    """Return the context that starts such processes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context
