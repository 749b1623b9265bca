"""A page driven by playwright, which connects to Chromium in its sandbox.

Its driver: it starts with the first page and ends with the last. A driver that failed gets no further page; the next page starts
another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from agentrl.exceptions import InfraError
from agentrl.processes import Processes
from agentrl.sandbox.interface import Mount, Provider
from agentrl.tasks.gui.browser.interface import SEND_S, Page
from agentrl.tasks.gui.browser.walled import FLAGS, PROFILE, WalledProgram, find_chromium
from groundwork.exceptions import ConfigError

_DRIVERS: WeakKeyDictionary[asyncio.AbstractEventLoop, SharedDriver] = WeakKeyDictionary()
ACTIVE_PORT = f"{PROFILE}/DevToolsActivePort"


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


def shared() -> SharedDriver:
    """Return the driver of the running event loop."""
    return _DRIVERS.setdefault(asyncio.get_running_loop(), SharedDriver())


async def _started() -> _Running:
    from playwright.async_api import async_playwright  # an extra

    manager = async_playwright()
    return _Running(manager, await manager.__aenter__())


class PlaywrightPage(Page):
    """See `Page`; make it with `open`."""

    def __init__(
        self, program: WalledProgram, session: Any, lost: asyncio.Future[str], closing: AsyncExitStack
    ) -> None:
        self._program = program
        self._session = session
        self._lost = lost
        self._closing = closing

    @classmethod
    async def open(cls, provider: Provider, processes: Processes, mounts: Sequence[Mount]) -> PlaywrightPage:
        """Start Chromium and connect to its first page.

        Raises:
            ConfigError: playwright is not installed.
            InfraError: Chromium does not start.
        """
        try:
            from playwright.async_api import Error
        except ImportError as error:
            raise ConfigError("playwright is not installed; run scripts/setup.sh, or pip install '.[gui]'") from error
        program = WalledProgram(provider, processes)
        async with AsyncExitStack() as closing:
            closing.push_async_callback(program.stop)
            argv = [find_chromium(), *FLAGS, "--remote-debugging-port=0", "about:blank"]
            await program.start(argv, 0, mounts, connections=1)
            port, path = (await program.read_file(ACTIVE_PORT)).splitlines()
            program.port_inside = int(port)
            driver = shared()
            playwright = await closing.enter_async_context(driver.lent())
            try:
                browser = await playwright.chromium.connect_over_cdp(f"ws://127.0.0.1:{program.port}{path}")
                closing.push_async_callback(_left, browser)
                page = browser.contexts[0].pages[0]
                lost = asyncio.get_running_loop().create_future()
                page.on("crash", lambda _: _tell(lost, "the page's process ended"))
                browser.on("disconnected", lambda _: _tell(lost, "the browser left"))
                session = await browser.contexts[0].new_cdp_session(page)
            except Error as error:
                program.check()
                driver.give_up(playwright)  # the browser runs, so the driver may be at fault
                raise InfraError(f"playwright cannot connect: {error.message}", code="browser_lost") from error
            return cls(program, session, lost, closing.pop_all())
        raise AssertionError  # an exit stack of these callbacks hides nothing

    async def send(self, method: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """See `Page`."""
        from playwright.async_api import Error

        # The library leaves a call without an answer for ever when its page or its browser dies.
        call = asyncio.ensure_future(self._session.send(method, dict(parameters or {})))
        ends = [call, self._lost, *self._program.ends()]
        try:
            await asyncio.wait(ends, timeout=SEND_S, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                return call.result()
        except Error as error:
            self._program.check()
            raise InfraError(f"the browser failed {method}: {error}", code="browser_lost") from error
        finally:
            if not call.cancel() and not call.cancelled():
                call.exception()  # read, or the loop complains of it
        self._program.check()
        why = self._lost.result() if self._lost.done() else f"no answer within {SEND_S:g} s"
        raise InfraError(f"the browser failed {method}: {why}", code="browser_lost")

    async def close(self) -> None:
        """See `Page`."""
        await self._closing.aclose()


def _tell(lost: asyncio.Future[str], why: str) -> None:
    if not lost.done():
        lost.set_result(why)


async def _left(browser: Any) -> None:
    """Disconnect from a browser, which may be gone."""
    from playwright.async_api import Error

    with suppress(Error):
        await browser.close()
