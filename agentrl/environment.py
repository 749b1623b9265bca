"""The interface that environments implement, and the tasks that they offer.

A pool makes one `Environment` per lease and calls `reset`, `step` and `evaluate` one at a time. Raise `InvalidError` for
an action that makes no sense: the episode goes on. Any other exception makes the episode worthless, and its verdict an
``infra_error``. Nothing here may block the event loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentrl.processes.owned import Processes
from agentrl.protocol import JsonObject, Observation, StepResult, Verdict


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

    def __init__(self, processes: Processes) -> None:
        """Prepare without starting anything; start processes in `reset`, through ``processes``."""
        self.processes = processes

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
