"""MiniWoB++ as an environment: one walled Chromium for each lease, one page for each episode."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from agentrl.environment import Task, Weight
from agentrl.exceptions import InfraError
from agentrl.processes import Processes
from agentrl.protocol import Verdict
from agentrl.sandbox.interface import Mount
from agentrl.tasks.gui.browser.interface import Page
from agentrl.tasks.gui.browser.playwright_page import PlaywrightPage
from agentrl.tasks.gui.browser.selenium_page import SeleniumPage
from agentrl.tasks.gui.browser.walled import LIMITS
from agentrl.tasks.gui.computer import BrowserComputer, Computer
from agentrl.tasks.gui.environment import GuiEnvironment
from agentrl.tasks.gui.miniwob import episode
from agentrl.tasks.gui.miniwob.pages import (
    INSIDE,
    TASKS_PER_FAMILY,
    families_of,
    html_folder,
    page_url,
    parse_name,
    task_name,
)
from agentrl.tasks.gui.settings import BROWSER_DRIVERS, GuiSettings
from agentrl.tasks.names import SPLITS
from groundwork.exceptions import ConfigError

WEIGHT = Weight(LIMITS.memory_mib, LIMITS.cpus / 2)


class MiniWobEnvironment(GuiEnvironment):
    """See the module."""

    def __init__(self, processes: Processes) -> None:
        super().__init__(processes)
        self._page: Page | None = None
        self._url = ""

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        """Return the tasks of all families.

        Raises:
            ConfigError: SCREENSHOT_BACKEND is for other screens.
        """
        GuiSettings.from_env().driver(*BROWSER_DRIVERS)
        return [
            Task(task_name(family, split, number), weight=WEIGHT)
            for split in SPLITS
            for family in families_of(split)
            for number in range(TASKS_PER_FAMILY[split])
        ]

    async def begin(self, task: Task, seed: int) -> tuple[Computer, str]:
        """See `GuiEnvironment`; the seed changes nothing, because a task's id fixes everything."""
        family, task_seed = parse_name(task.id)
        self._url = page_url(family)
        if self._page is None:
            self._page = await self._open()
        try:
            instruction = await episode.start(self._page, self._url, task_seed)
        except InfraError:
            await self.close()
            raise
        return BrowserComputer(self._page, episode.SCREEN, episode.HIDDEN), instruction

    async def over(self) -> bool:
        """See `GuiEnvironment`."""
        state = await self._state()
        return state.done or not state.here

    async def judge(self) -> Verdict:
        """See `GuiEnvironment`."""
        return (await self._state()).verdict()

    async def close(self) -> None:
        """End the browser."""
        page, self._page = self._page, None
        if page is not None:
            with suppress(InfraError):
                await page.close()

    async def _state(self) -> episode.State:
        if self._page is None:
            raise InfraError("the episode has no browser; reset it first", code="not_begun")
        return await episode.read(self._page, self._url)

    async def _open(self) -> Page:
        assert self.provider is not None
        mounts = [Mount(html_folder(), INSIDE)]
        try:
            if self.settings.driver(*BROWSER_DRIVERS) == "selenium":
                return await SeleniumPage.open(self.provider, self.processes, mounts, self.blocking)
            return await PlaywrightPage.open(self.provider, self.processes, mounts)
        except ConfigError as error:
            raise InfraError(str(error), code="no_driver") from error
