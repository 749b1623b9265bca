"""A process of its own for what is measured, whose memory and threads nothing before it has touched."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def in_own_process(function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(*args)`` from a new process that has imported torch and holds no thread of this one.

    A fork of this process would not do: locks that other threads hold (OpenMP, a progress bar) stay locked in it for ever.

    Raises:
        concurrent.futures.process.BrokenProcessPool: the process died.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformers"])
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *args).result()
