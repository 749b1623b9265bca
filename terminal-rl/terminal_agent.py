"""``run_terminal_agent.sh --served``: `openclaw-test/run_eval.py` with the suite of terminal tasks, and the variables of these in its help."""

from __future__ import annotations

import sys

from evaluation.options import SUITES, Program
from evaluation.terminal import MAX_STEPS
from run_eval import main

from agentrl.tasks.terminal.source import TaskSource

TOLD = "; ".join(f"{variable.name}: {variable.help}" for variable in (MAX_STEPS, *TaskSource.variables()))
PROGRAM = Program(
    "run_terminal_agent.sh",
    "Let a model solve terminal tasks and write a report. Other options go to python -m openclaw.server, which serves a checkpoint.",
    f"Variables: {TOLD}.",
)

if __name__ == "__main__":
    sys.exit(main([SUITES, "terminal", *sys.argv[1:]], PROGRAM))
