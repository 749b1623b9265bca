"""The tasks that a server offers, by id; a client never names anything else of the server's machine.

Guarantee: an id belongs to one task of one environment. Immutable after construction.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable

from agentrl.environment import Environment, Task
from agentrl.exceptions import NotFoundError
from groundwork.exceptions import ConfigError


class Registry:
    """Tasks and their environments."""

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
