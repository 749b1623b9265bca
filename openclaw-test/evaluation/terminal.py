"""The suite ``terminal``: tasks that the model solves in persistent shells, with the tools of a terminal agent.

TASK_TYPE and DATASET_DIR choose the tasks (`agentrl.tasks.terminal.source`); without them they are generated, of the split
``heldout``. MAX_STEPS bounds the replies. Guarantees: as `evaluation.shell`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from agentrl.tasks.terminal.environment import TerminalEnvironment
from agentrl.tasks.terminal.source import TaskSource
from evaluation.case import Case, EvalError
from evaluation.shell import MAX_REPLIES, Shell
from groundwork.exceptions import ConfigError
from groundwork.variables import Variable

MAX_STEPS = Variable("MAX_STEPS", "max_steps", int, MAX_REPLIES, "most replies to a task", minimum=1)
LEVEL = 2


class Terminal(Shell):
    """See `evaluation.case.Suite`. Each folder of a data set is a family of its own."""

    name = "terminal"
    environment = TerminalEnvironment

    def cases(self, seed: int, count: int) -> Sequence[Case]:
        """Return tasks of the source in turn.

        Raises:
            EvalError: a variable is wrong.
        """
        try:
            source = TaskSource.from_env()
            if source.task_type == "bash_commands":
                return super().cases(seed, count)
            ids = source.ids()
        except ConfigError as error:
            raise EvalError(str(error)) from error
        chosen = [ids[(seed * count + number) % len(ids)] for number in range(count)]
        return [Case(self.name, item, LEVEL, seed, number, item) for number, item in enumerate(chosen)]

    def most_replies(self) -> int:
        """Return MAX_STEPS."""
        value, _ = MAX_STEPS.read(os.environ)
        assert isinstance(value, int)
        return value
