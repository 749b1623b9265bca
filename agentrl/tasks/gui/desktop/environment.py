"""The desktop tasks as an environment: a sandbox with a display of its own for each episode."""

from __future__ import annotations

from collections.abc import Iterable

from agentrl.environment import Task, Weight
from agentrl.exceptions import InfraError
from agentrl.processes import Processes
from agentrl.protocol import Verdict
from agentrl.tasks.gui.computer import Computer
from agentrl.tasks.gui.desktop.screen import LIMITS, Desktop, installed
from agentrl.tasks.gui.desktop.windows import FAMILIES, TASKS_PER_FAMILY, WindowTask, task_name, window_task
from agentrl.tasks.gui.environment import GuiEnvironment
from agentrl.tasks.gui.settings import DESKTOP_DRIVERS, GuiSettings
from agentrl.tasks.names import SPLITS

WEIGHT = Weight(LIMITS.memory_mib, LIMITS.cpus / 2)


class DesktopEnvironment(GuiEnvironment):
    """See the module."""

    def __init__(self, processes: Processes) -> None:
        super().__init__(processes)
        self.desktop: Desktop | None = None
        self._task: WindowTask

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        """Return the tasks of all families.

        Raises:
            ConfigError: a desktop cannot run on this machine, or SCREENSHOT_BACKEND is for other screens.
        """
        GuiSettings.from_env().driver(*DESKTOP_DRIVERS)
        installed()
        return [
            Task(task_name(family, split, number), weight=WEIGHT)
            for split in SPLITS
            for family in FAMILIES
            for number in range(TASKS_PER_FAMILY[split])
        ]

    async def begin(self, task: Task, seed: int) -> tuple[Computer, str]:
        """See `GuiEnvironment`; the seed changes nothing, because a task's id fixes everything."""
        await self.close()
        self._task = window_task(task.id)
        assert self.provider is not None
        self.desktop = await Desktop.open(self.provider, self.processes, self._task.window)
        return self.desktop, self._task.instruction

    async def over(self) -> bool:
        """See `GuiEnvironment`; a pressed button ends a task."""
        return self._begun_desktop().state["pressed"] is not None

    async def judge(self) -> Verdict:
        """See `GuiEnvironment`."""
        desktop = self._begun_desktop()
        await desktop.ask(None)
        return self._task.verdict(desktop.state)

    async def close(self) -> None:
        """End the desktop."""
        desktop, self.desktop = self.desktop, None
        if desktop is not None:
            await desktop.close()

    def _begun_desktop(self) -> Desktop:
        if self.desktop is None:
            raise InfraError("the episode has no desktop; reset it first", code="not_begun")
        return self.desktop
