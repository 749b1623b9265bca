"""A page driven by selenium: Chromium and chromedriver run in the sandbox, and each command is a request to chromedriver."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from agentrl.exceptions import InfraError
from agentrl.processes import Processes
from agentrl.sandbox.interface import Mount, Provider
from agentrl.tasks.gui.browser.interface import SEND_S, Page
from agentrl.tasks.gui.browser.walled import FLAGS, WalledProgram, find_chromium
from groundwork.exceptions import ConfigError

DRIVER = "chromedriver"
PORT = 9515
CONNECTIONS = 8
"""Of urllib3, which replaces a connection that fails."""
Blocking = Callable[..., Awaitable[Any]]


class SeleniumPage(Page):
    """See `Page`; make it with `open`."""

    def __init__(self, program: WalledProgram, driver: Any, blocking: Blocking, closing: AsyncExitStack) -> None:
        self._program = program
        self._driver = driver
        self._blocking = blocking
        self._closing = closing

    @classmethod
    async def open(
        cls, provider: Provider, processes: Processes, mounts: Sequence[Mount], blocking: Blocking
    ) -> SeleniumPage:
        """Start chromedriver and Chromium.

        Args:
            provider: of the sandbox.
            processes: of the lease.
            mounts: folders that Chromium reads.
            blocking: runs a function that blocks, such as `agentrl.environment.Environment.blocking`.

        Raises:
            ConfigError: selenium is not installed.
            InfraError: Chromium does not start.
        """
        try:
            from selenium import webdriver
            from selenium.common.exceptions import WebDriverException
            from selenium.webdriver.chrome.remote_connection import ChromeRemoteConnection
            from selenium.webdriver.common.proxy import Proxy, ProxyType
            from selenium.webdriver.remote.client_config import ClientConfig
            from urllib3.exceptions import HTTPError
        except ImportError as error:
            raise ConfigError("selenium is not installed; run scripts/setup.sh, or pip install '.[gui]'") from error
        if shutil.which(DRIVER) is None:
            raise InfraError(
                "there is no chromedriver; install it with scripts/setup_chromium.sh", code="no_chromedriver"
            )
        program = WalledProgram(provider, processes)
        async with AsyncExitStack() as closing:
            closing.push_async_callback(program.stop)
            await program.start([DRIVER, f"--port={PORT}"], PORT, mounts, connections=CONNECTIONS)
            options = webdriver.ChromeOptions()
            options.binary_location = find_chromium()
            for flag in FLAGS:
                options.add_argument(flag)
            address = f"http://127.0.0.1:{program.port}"
            try:
                direct = Proxy({"proxyType": ProxyType.DIRECT})
                config = ClientConfig(remote_server_addr=address, timeout=int(SEND_S), proxy=direct)
                carrier = ChromeRemoteConnection(address, client_config=config)
                driver = await blocking(functools.partial(webdriver.Remote, carrier, options=options))
            except (WebDriverException, HTTPError, OSError) as error:
                program.check()
                raise InfraError(f"selenium cannot connect: {error}", code="browser_lost") from error
            return cls(program, driver, blocking, closing.pop_all())
        raise AssertionError  # an exit stack of these callbacks hides nothing

    async def send(self, method: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """See `Page`."""
        from selenium.common.exceptions import WebDriverException
        from urllib3.exceptions import HTTPError

        asked = {"cmd": method, "params": dict(parameters or {})}
        try:
            answer = await self._blocking(self._driver.execute, "executeCdpCommand", asked)
        except (WebDriverException, HTTPError, OSError) as error:
            self._program.check()
            raise InfraError(f"the browser failed {method}: {error}", code="browser_lost") from error
        return answer["value"]

    async def close(self) -> None:
        """See `Page`."""
        await self._closing.aclose()
