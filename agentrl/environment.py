"""The interface that environments implement, and the tasks that they offer.

A pool makes one `Environment` per lease and calls `reset`, `step` and `evaluate` one at a time. Raise `InvalidError` for
an action that makes no sense: the episode goes on. Any other exception makes the episode worthless, and its verdict an
``infra_error``. Nothing here may block the event loop: hand code that blocks to `Environment.blocking`.

A server offers the tasks of its `Registry`; a client never names anything else of the server's machine.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, ClassVar, ParamSpec, TypeVar

from agentrl.exceptions import NotFoundError
from agentrl.processes import Processes
from agentrl.protocol import JsonObject, Observation, StepResult, Verdict
from agentrl.sandbox.interface import Provider
from groundwork.exceptions import ConfigError

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
    """One environment, for one lease.

    Example:
        >>> class Guess(Environment):
        ...     @classmethod
        ...     def tasks(cls):
        ...         return [Task("guess/7", {"number": 7})]
        ...     async def reset(self, task, seed):
        ...         self.number, self.right = task.data["number"], False
        ...         return Observation(text="Guess a number from 1 to 10.")
        ...     async def step(self, action):
        ...         self.right = action["text"] == str(self.number)
        ...         return StepResult(observation=Observation(text="right" if self.right else "wrong"), done=self.right)
        ...     async def evaluate(self):
        ...         return Verdict(status="ok", score=float(self.right))
        ...     async def close(self):
        ...         pass
        >>> len(Registry([Guess]))
        1
    """

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


class Registry:
    """Tasks by id, each of one environment. Immutable after construction."""

    def __init__(self, environments: Iterable[type[Environment]]) -> None:
        """Ask each environment for its tasks.

        Raises:
            ConfigError: two tasks have one id, there is none, or an environment cannot say.
        """
        self._tasks: dict[str, tuple[Task, type[Environment]]] = {}
        for environment in environments:
            for task in _tasks_of(environment):
                if task.id in self._tasks:
                    other = self._tasks[task.id][1].__name__
                    raise ConfigError(
                        f"task {task.id!r} is offered by {other} and {environment.__name__}; rename one of them"
                    )
                self._tasks[task.id] = task, environment
        if not self._tasks:
            raise ConfigError("the environments offer no task; return some from Environment.tasks")

    def __len__(self) -> int:
        return len(self._tasks)

    def find(self, task_id: str) -> tuple[Task, type[Environment]]:
        """Return a task and its environment.

        Raises:
            NotFoundError: there is no such task.
        """
        try:
            return self._tasks[task_id]
        except KeyError:
            raise NotFoundError(
                f"this server has no task {task_id!r}; use an id of its registry", code="unknown_task"
            ) from None


def _tasks_of(environment: type[Environment]) -> list[Task]:
    try:
        return list(environment.tasks())
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{environment.__name__}.tasks raised {type(error).__name__}: {error}; correct it, or its files"
        ) from error


def load_environment(name: str) -> type[Environment]:
    """Return the class that ``MODULE.CLASS`` names.

    Raises:
        ConfigError: there is none, or it is not a finished environment.
    """
    module, _, attribute = name.rpartition(".")
    if not module:
        raise ConfigError(f"--env {name}: write MODULE.CLASS, such as my_package.my_env.MyEnv")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--env {name}: {error}; write MODULE.CLASS of an importable module") from error
    except Exception as error:
        raise ConfigError(f"--env {name}: its import raised {type(error).__name__}: {error}; correct it") from error
    if not (isinstance(found, type) and issubclass(found, Environment)):
        raise ConfigError(f"--env {name} is not an agentrl.environment.Environment; derive the class from it")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise ConfigError(f"--env {name} lacks {missing}; implement them")
    return found
