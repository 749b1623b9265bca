"""A process of its own for what is measured, whose memory and threads nothing before it has touched."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from tests.helpers.new_process import ready_to_fork


def in_own_process(function: Callable[..., Any], *values: Any) -> Any:
    """Return ``function(*values)`` from a new process that has imported torch and holds no thread of this one.

    A fork of this process would not do: locks that other threads hold (OpenMP, a progress bar) stay locked in it for ever.

    Raises:
        concurrent.futures.process.BrokenProcessPool: the process died.
    """
    with ProcessPoolExecutor(1, mp_context=ready_to_fork()) as pool:
        return pool.submit(function, *values).result()
