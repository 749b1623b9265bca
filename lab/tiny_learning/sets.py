"""The sets of tasks, how long a run trains on one, and the model that it begins with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from lab.tiny_learning.calls import TOOLCALL
from lab.tiny_learning.clicks import GUI
from lab.tiny_learning.mending import SWE
from lab.tiny_learning.pictures.tasks import GUI_PICTURES
from lab.tiny_learning.shell import TERMINAL
from lab.tiny_learning.traces import AgentTasks, TaskSet

TASK_SETS: Mapping[str, AgentTasks] = MappingProxyType(
    {each.name: each for each in (GUI, GUI_PICTURES, SWE, TERMINAL, TOOLCALL)}
)
UPDATES: Mapping[str, int] = MappingProxyType(dict.fromkeys(TASK_SETS, 8) | {GUI_PICTURES.name: 5, TOOLCALL.name: 16})
"""Optimizer steps of a run that names no number. No warm start depends on them."""


def judges(tasks: AgentTasks) -> bool:
    """Return whether the warm start has learned to judge steps: it reads text only."""
    return isinstance(tasks, TaskSet)


def warm_start_of(tasks: AgentTasks, say: Callable[[str], None]) -> Path:
    """Return the folder of the model that a run begins with; imports torch.

    Raises:
        WarmStartError: there is none, or it did not pass the gate; says what to do.
    """
    if isinstance(tasks, TaskSet):
        from lab.tiny_learning.warm_start import warm_start

        return warm_start(tasks, say)
    from lab.tiny_learning.pictures.shipped import shipped

    return shipped(tasks)
