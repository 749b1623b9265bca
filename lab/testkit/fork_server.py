"""New processes that have imported torch. Needs nothing but the standard library, as `tests/gpu` does beside torch."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import ForkServerContext
from typing import Any

IMPORTED = ["torch", "torch.distributed.fsdp", "transformers", "peft"]
"""Installed packages only: the server of new processes does not know pytest's paths."""


def ready_to_fork() -> ForkServerContext:
    """Return the context that starts processes which are forked from one that has imported torch.

    That one holds no thread and no group of processes, only modules; what is forked from it is as fresh as a spawned one.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def in_own_process(function: Callable[..., Any], *values: Any) -> Any:
    """Return ``function(*values)`` from a new process that has imported torch and holds no thread of this one.

    A fork of this process would not do: locks that other threads hold (OpenMP, a progress bar) stay locked in it for ever.

    Raises:
        concurrent.futures.process.BrokenProcessPool: the process died.
    """
    with ProcessPoolExecutor(1, mp_context=ready_to_fork()) as pool:
        return pool.submit(function, *values).result()
