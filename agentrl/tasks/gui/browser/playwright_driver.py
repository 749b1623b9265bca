"""Playwright's driver, a process of Node that all pages of a pool share: a start of it costs more than a page does.

Guarantees: it starts with the first page and ends with the last. A driver that failed gets no further page; the next page starts
another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary


@dataclass
class _Running:
    """A driver.

    Attributes:
        manager: that stops it.
        playwright: its interface.
        pages: that use it.
    """

    manager: Any
    playwright: Any
    pages: int = 0


class SharedDriver:
    """The driver of one event loop; see `shared`."""

    def __init__(self) -> None:
        self._newest: _Running | None = None
        self._changing = asyncio.Lock()

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[Any]:
        """Lend playwright's interface for a page; playwright has to be installed."""
        async with self._changing:
            running = self._newest = self._newest or await _started()
            running.pages += 1
        try:
            yield running.playwright
        finally:
            async with self._changing:
                running.pages -= 1
                if not running.pages:
                    self.give_up(running.playwright)
                    await running.manager.__aexit__(None, None, None)

    def give_up(self, playwright: Any) -> None:
        """Lend this driver to no further page."""
        if self._newest is not None and self._newest.playwright is playwright:
            self._newest = None


_DRIVERS: WeakKeyDictionary[asyncio.AbstractEventLoop, SharedDriver] = WeakKeyDictionary()


def shared() -> SharedDriver:
    """Return the driver of the running event loop."""
    return _DRIVERS.setdefault(asyncio.get_running_loop(), SharedDriver())


async def _started() -> _Running:
    from playwright.async_api import async_playwright  # an extra

    manager = async_playwright()
    return _Running(manager, await manager.__aenter__())
