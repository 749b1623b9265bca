"""Wait for what becomes true. Needs nothing but the standard library, as `tests/gpu` does beside torch."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

WAIT_SECONDS = 400.0


async def eventually(value: Callable[[], Any], wanted: Any, seconds: float = 20.0) -> None:
    """Return once ``value()``, awaited when it can be, equals ``wanted``; fail with the last value otherwise."""
    found: Any = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                found = value()
                if inspect.isawaitable(found):
                    found = await found
                if found == wanted:
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"still {found!r} after {seconds} s, not {wanted!r}") from None


def wait_until(condition: Callable[[], Any], what: Callable[[], str], seconds: float = WAIT_SECONDS) -> Any:
    """Return the first true value of ``condition``; fail with ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(what())
