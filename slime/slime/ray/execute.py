"""Run a control loop and turn its outcome into an exit code."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ray.exceptions import RayTaskError

from slime.args import Arguments
from slime.exceptions import ConfigurationError, SlimeError
from slime.ray.report import say
from slime.ray.restarts import first_line
from slime.ray.run import Run
from slime.utils.process import Stopped

logger = logging.getLogger(__name__)


def execute(args: Arguments, loop: Callable[[Run], None], *, collects: bool = True) -> int:
    """Run a control loop until it returns or a signal stops it, and return the exit code.

    On a failure the last line of output names the trainer, engine, machine or plugin that failed. The traceback
    precedes it, unless the arguments are at fault. ``collects``: whether the loop asks for rollouts.
    """
    run = Run(args, collects=collects)
    try:
        with run:
            run.repeat(loop)
    except Stopped:
        say("stopped")
    except (SlimeError, RayTaskError) as error:
        if not isinstance(error, ConfigurationError):
            logger.exception("the run failed")
        cause = getattr(error, "cause", None) or error
        say(f"the run failed: {first_line(cause)}")
        return 1
    return run.stop.exit_code
