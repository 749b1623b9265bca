"""One background event loop per process, for synchronous code that calls asynchronous plugins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from typing import Any

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def get_async_loop() -> asyncio.AbstractEventLoop:
    """Return the process's background loop, started on first use in a daemon thread."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="slime-async", daemon=True).start()
        return _loop


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run ``coroutine`` on the background loop, block the calling thread, and return the result.

    Raises:
        RuntimeError: called from the background loop itself, which would deadlock.
    """
    loop = get_async_loop()
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop:
        coroutine.close()
        raise RuntimeError("run() was called from the background loop; await the coroutine instead")
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result()


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run ``coroutines`` concurrently and return their results in order.

    If one raises or the caller is cancelled, the others are cancelled and awaited before the exception propagates.
    Nothing keeps running, and their requests to servers end with their connections.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
