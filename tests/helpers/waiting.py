"""Waiting for something to become true, without a fixed pause."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


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
