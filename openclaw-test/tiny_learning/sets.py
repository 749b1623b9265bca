"""The sets of tasks, and how long a run trains on one, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tiny_learning.calls import TOOLCALL
from tiny_learning.clicks import GUI
from tiny_learning.mending import SWE
from tiny_learning.shell import TERMINAL
from tiny_learning.traces import TaskSet

TASK_SETS: Mapping[str, TaskSet] = MappingProxyType({each.name: each for each in (GUI, SWE, TERMINAL, TOOLCALL)})
UPDATES: Mapping[str, int] = MappingProxyType({GUI.name: 8, SWE.name: 8, TERMINAL.name: 8, TOOLCALL.name: 16})
"""Optimizer steps of a run that names no number. No warm start depends on them."""
