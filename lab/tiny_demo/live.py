"""`--live`: the run without the student. A person talks to it, and it learns until it is stopped.

Guarantees: the process becomes the launcher, so the terminal shows the run's own lines, and signals and exit code are
the run's.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import NoReturn

from groundwork.start_timeline import Beginning
from lab.tiny_demo.launched import Settings
from lab.tiny_demo.resume import continue_command
from slime.arguments.checkpoint import CONTINUE_VARIABLE

# One person gives few turns. With these a dozen complaints change the first replies (log/tiny_demo.md#live-mode).
VARIABLES = {"BATCH_SIZE": "4", "LEARNING_RATE": "4e-4"}
OF_THE_STUDENT = ("updates", "sessions", "max_turns", "heldout", "client", "taste", "gsm8k", "report", "keep_serving")
"""Options that mean nothing without a student or a measurement."""


def unused(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str | None:
    """Return why an option does not fit `--live`, and what to type; None if all fit."""
    given = [name for name in OF_THE_STUDENT if getattr(options, name) != parser.get_default(name)]
    if not given:
        return None
    flag = f"--{given[0].replace('_', '-')}"
    return f"{flag} is for the simulated student, and with --live you are the one who talks; leave it out"


def become(settings: Settings, options: argparse.Namespace, beginning: Beginning) -> NoReturn:
    """Become the launcher of the run; ``beginning``: of the start's timeline."""
    variables = {**settings.environment(os.environ), CONTINUE_VARIABLE: continue_command(options, sys.argv)}
    variables |= beginning.carried()
    sys.stdout.flush()
    os.execve(settings.command[0], settings.command, variables)
