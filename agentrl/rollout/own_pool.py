"""A pool of one kind of environment inside the trainer's process, for runs without a pool of their own.

Guarantees: sandboxes are proved to hold before the first episode. Processes are in a ledger in the run's folder, so the next start
of the run ends what a killed one left. The pool belongs to the event loop that started it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry

from agentrl.client import InProcessLeases
from agentrl.environment import Environment, Registry, Task, Weight
from agentrl.leases.metrics import PoolMetrics
from agentrl.leases.pool import Capacity, Pool
from agentrl.processes import ProcessLedger
from agentrl.protocol import LeaseService
from agentrl.sandbox.streams import sweep_doors
from groundwork.machine import usable_cores, usable_memory_mib
from slime.args import Arguments
from slime.rollout.generation import GenerateState

STOP_S = 60.0
MEMORY_SHARE = 0.5
"""Of this process's memory that episodes may take; the trainer has the rest."""


class OpenRegistry(Registry):
    """Tasks of one kind of environment; `add` names more of them."""

    def __init__(self, kind: type[Environment]) -> None:
        self._kind = kind
        super().__init__([kind])

    def add(self, task: Task) -> None:
        """Offer a task under its id; the same id again replaces it."""
        self._tasks[task.id] = task, self._kind


OWN: WeakKeyDictionary[GenerateState, OwnPool] = WeakKeyDictionary()


def own_pool(args: Arguments, kind: type[Environment], name: str, slots: int) -> OwnPool:
    """Return the pool of this process, made on the first call.

    Args:
        args: of the run.
        kind: of the environments.
        name: of the folder in the run's.
        slots: most episodes at a time.

    Raises:
        ConfigError: the environment cannot say what it offers.
    """
    state = GenerateState(args)
    if state not in OWN:
        OWN[state] = OwnPool(kind, Path(args.run_dir) / name, slots)
    return OWN[state]


class OwnPool:
    """The pool; the first `lend` starts it."""

    def __init__(self, kind: type[Environment], folder: Path, slots: int) -> None:
        """Prepare.

        Args:
            kind: of the environments.
            folder: of the run.
            slots: most episodes at a time.

        Raises:
            ConfigError: the environment cannot say what it offers.
        """
        self.registry = OpenRegistry(kind)
        self._kind, self._folder, self._slots = kind, folder, slots
        self._pool: Pool | None = None
        self._ledger: ProcessLedger | None = None
        self._starting = asyncio.Lock()

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[LeaseService]:
        """Yield the pool's leases.

        Raises:
            InfraError: sandboxes do not hold on this machine, or what a killed run left does not end.
        """
        async with self._starting:
            if self._pool is None:
                self._pool = await self._started()
        yield InProcessLeases(self._pool)

    async def stop(self) -> None:
        """End all episodes; a second call does nothing."""
        if self._pool is not None:
            await self._pool.stop(STOP_S)
            self._pool = None
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    async def _started(self) -> Pool:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._ledger = ProcessLedger(self._folder / "environments.sqlite")
        if self._kind.provider is not None:
            await self._kind.provider.check()
            await self._kind.provider.sweep(self._ledger.pool)
        sweep_doors(self._ledger.pool)
        size = Weight(int(usable_memory_mib() * MEMORY_SHARE), usable_cores())
        metrics = PoolMetrics(CollectorRegistry())
        pool = Pool(self.registry, Capacity(self._slots, size), self._ledger, metrics)
        await pool.start()
        return pool
