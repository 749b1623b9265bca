"""The interface that environments implement, and the tasks that they offer.

A pool makes one `Environment` per lease and calls `reset`, `step` and `evaluate` one at a time. Raise `InvalidError` for
an action that makes no sense: the episode goes on. Any other exception makes the episode worthless, and its verdict an
``infra_error``. Nothing here may block the event loop: hand code that blocks to `Environment.blocking`.
"""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, ClassVar, ParamSpec, TypeVar

from agentrl.processes import Processes
from agentrl.protocol import JsonObject, Observation, StepResult, Verdict
from agentrl.sandbox.interface import Provider

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Weight:
    """What an environment takes from its pool, besides a slot: memory in MiB, and processor cores."""

    memory_mib: int = 0
    cpu: float = 0.0

    def __add__(self, other: Weight) -> Weight:
        return Weight(self.memory_mib + other.memory_mib, self.cpu + other.cpu)

    def __sub__(self, other: Weight) -> Weight:
        return Weight(self.memory_mib - other.memory_mib, self.cpu - other.cpu)

    def fits(self, room: Weight) -> bool:
        """Return whether this is at most ``room``, up to rounding."""
        return self.memory_mib <= room.memory_mib and self.cpu <= room.cpu + 1e-9


@dataclass(frozen=True, slots=True)
class Task:
    """A task of the server's registry. Clients send its id only; ``data`` never leaves the server by itself."""

    id: str
    data: JsonObject = field(default_factory=dict)
    weight: Weight = Weight()


class Environment(ABC):
    """One environment, for one lease."""

    provider: ClassVar[Provider | None] = None
    """Starts the sandboxes of an environment that runs programs of agents. The pool's command replaces it by the provider
    that it was told, once that is proved to hold. None: it runs no such program."""

    def __init__(self, processes: Processes) -> None:
        """Prepare without starting anything; start processes in `reset`, through ``processes``."""
        self.processes = processes
        self._threads: Executor | None = None
        self._blocking: set[Future[Any]] = set()

    def lend_threads(self, threads: Executor) -> None:
        """Take the threads for `blocking`; the pool calls this before anything else."""
        self._threads = threads

    async def blocking(self, function: Callable[P, T], *values: P.args, **named: P.kwargs) -> T:
        """Run code that blocks in a thread, and return its result.

        The pool has as many threads as slots. A call that is cancelled runs on, and the lease keeps its slot until it
        ends, so give the code a time limit of its own.

        Raises:
            RuntimeError: no pool made this environment.
        """
        if self._threads is None:
            raise RuntimeError("no pool made this environment; call lend_threads first")
        running = self._threads.submit(functools.partial(function, *values, **named))
        self._blocking.add(running)
        running.add_done_callback(self._blocking.discard)
        return await asyncio.wrap_future(running)

    @property
    def blocked(self) -> int:
        """Return the number of calls of `blocking` that have not ended."""
        return len(self._blocking)

    @classmethod
    @abstractmethod
    def tasks(cls) -> Iterable[Task]:
        """Return the tasks that this environment offers; the server asks once, at its start."""

    @abstractmethod
    async def reset(self, task: Task, seed: int) -> Observation:
        """Start the task from the beginning, also after an earlier `reset`."""

    @abstractmethod
    async def step(self, action: JsonObject) -> StepResult:
        """Act once.

        Raises:
            InvalidError: the action makes no sense; say what to send.
        """

    @abstractmethod
    async def evaluate(self) -> Verdict:
        """Judge the episode; called at most once."""

    @abstractmethod
    async def close(self) -> None:
        """Release everything, also if `reset` was never called or was cut off.

        Called again if it fails or hangs, so a second call must do no harm.

        The pool then ends all processes that ``processes`` started, whatever this did.
        """
