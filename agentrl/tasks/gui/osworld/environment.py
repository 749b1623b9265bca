"""OSWorld's tasks as an environment: a machine for each lease, reverted before each episode."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from agentrl.environment import Task, Weight
from agentrl.exceptions import InfraError
from agentrl.processes import Processes
from agentrl.protocol import Verdict
from agentrl.tasks.gui.computer import Computer
from agentrl.tasks.gui.environment import GuiEnvironment
from agentrl.tasks.gui.osworld.judge import judge
from agentrl.tasks.gui.osworld.providers import Machine, VmProvider, provider_of
from agentrl.tasks.gui.osworld.settings import VmSettings
from agentrl.tasks.gui.osworld.setup import Files, Supplies, set_up
from agentrl.tasks.gui.osworld.source import load, pool_files
from agentrl.tasks.gui.osworld.task_file import TaskFile
from agentrl.tasks.gui.osworld.vm import VirtualMachine

POLL_SECONDS = 1.0


class OsWorldEnvironment(GuiEnvironment):
    """See the module."""

    provider = None
    """No program of the agent runs outside of the machine."""
    swept: ClassVar[set[str]] = set()
    """Pools of this process whose leftovers have ended."""
    sweeping: ClassVar[asyncio.Lock] = asyncio.Lock()

    def __init__(self, processes: Processes) -> None:
        super().__init__(processes)
        self.vm_settings = VmSettings.from_env()
        self._machines: VmProvider | None = None
        self._machine: Machine | None = None
        self._vm: VirtualMachine | None = None
        self._task: TaskFile | None = None
        cache = self.vm_settings.cache_dir
        self._supplies = Supplies(Files(Path(cache) if cache else None), self.vm_settings.password)

    @classmethod
    def tasks(cls) -> Iterable[Task]:
        """Return the tasks that the meta files list, each checked; without a meta file, all of the folder."""
        settings = VmSettings.from_env()
        weight = Weight(settings.memory_mib, float(settings.cpus))
        return [Task(name, {"path": str(path)}, weight) for name, path in pool_files(settings).items()]

    async def begin(self, task: Task, seed: int) -> tuple[Computer, str]:
        """See `GuiEnvironment`."""
        self._task = load(Path(str(task.data["path"])), self.vm_settings.password is not None)
        await self._disconnect()
        self._machine = await self._fresh(self._task.snapshot)
        self._vm = vm = VirtualMachine(self._machine.url)
        await self._booted(vm)
        await set_up(vm, self._task.config, self._supplies)
        return vm, self._task.instruction

    async def over(self) -> bool:
        """See `GuiEnvironment`; only the agent ends it."""
        return False

    async def judge(self) -> Verdict:
        """See `GuiEnvironment`."""
        assert self._vm is not None
        assert self._task is not None
        return await judge(self._vm, self._task, self._supplies, self.status)

    async def close(self) -> None:
        """End the machine."""
        await self._disconnect()
        if self._machine is not None and self._machines is not None:
            await self._machines.stop(self.processes, self._machine)
        self._machine = None

    async def _fresh(self, snapshot: str) -> Machine:
        """Return a machine as it was at its start."""
        machines = self._machines = self._machines or provider_of(self.vm_settings)
        async with self.sweeping:
            if self.processes.pool not in self.swept:
                await machines.sweep(self.processes)
                self.swept.add(self.processes.pool)
        if self._machine is None:
            return await machines.start(self.processes, snapshot)
        old, self._machine = self._machine, None
        try:
            return await machines.revert(self.processes, old, snapshot)
        except InfraError:
            with suppress(InfraError):
                await machines.stop(self.processes, old)
            raise

    async def _booted(self, vm: VirtualMachine) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.vm_settings.boot_seconds
        while True:
            try:
                return await vm.begin()
            except InfraError as error:
                if loop.time() > deadline:
                    said = f"the reset failed: the machine does not answer: {error.message}"
                    raise InfraError(said, code="reset_failed") from error
            await asyncio.sleep(POLL_SECONDS)

    async def _disconnect(self) -> None:
        if self._vm is not None:
            await self._vm.close()
            self._vm = None
