"""Agent programs on software engineering tasks: the program gets the issue in words, and its own prompts say how it works.

Start the pool with ``--env agentrl.harness.swe.SweHarness --harness mini-swe-agent``. Guarantees: those of
`agentrl.harness.environment` and of `agentrl.tasks.swe.environment`.
"""

from __future__ import annotations

from dataclasses import replace

from agentrl.environment import Task
from agentrl.harness.environment import HarnessEnvironment
from agentrl.sandbox.interface import HOME
from agentrl.tasks.harbor import HarborTask
from agentrl.tasks.swe.environment import SweEnvironment
from agentrl.tasks.swe.prompts import issue_text


class SweHarness(HarnessEnvironment, SweEnvironment):
    """Instances of the variables' source, for programs."""

    def load(self, task: Task) -> HarborTask:
        """Return what the program may know of a task."""
        loaded = super().load(task)
        assert self._instance is not None
        return replace(loaded, instruction=issue_text(self._instance.statement, HOME))
