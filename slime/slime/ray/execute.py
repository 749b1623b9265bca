"""Run a control loop and turn its outcome into an exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable

from ray.exceptions import RayTaskError

from groundwork.exceptions import ConfigError
from groundwork.garbage import collect_rarely
from groundwork.process import Stopped
from slime.args import Arguments
from slime.exceptions import SlimeError
from slime.ray.report import continue_line, say
from slime.ray.restarts import first_line
from slime.ray.run import Run

logger = logging.getLogger(__name__)


def execute(args: Arguments, loop: Callable[[Run], None], *, collects: bool = True) -> int:
    """Run a control loop until it returns or a signal stops it, and return the exit code.

    On a failure the last line of output names the trainer, engine, machine or plugin that failed. The traceback
    precedes it, unless the arguments are at fault. Before that come the lines to look into the run and to continue it.
    ``collects``: whether the loop asks for rollouts.
    """
    collect_rarely()
    run = Run(args, collects=collects)
    try:
        with run:
            run.repeat(loop)
    except Stopped:
        say("stopped")
        _say_the_end(run, unfinished=True)
    except (SlimeError, ConfigError, RayTaskError) as error:
        if not isinstance(error, ConfigError):
            logger.exception("the run failed")
        _say_the_end(run, unfinished=True)
        cause = getattr(error, "cause", None) or error
        say(f"the run failed: {first_line(cause)}")
        return 1
    else:
        _say_the_end(run, unfinished=False)
    return run.stop.exit_code


def _say_the_end(run: Run, *, unfinished: bool) -> None:
    """Print the data source's last lines and, if a run can go on, the line that continues it."""
    for line in run.story.end:
        say(line)
    if unfinished and (line := continue_line(run.args, sys.argv, os.environ)):
        say(f"continue {line}")
