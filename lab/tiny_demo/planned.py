"""Plan the demo's run before anything is built, so that a mistyped flag or variable is answered at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from groundwork.exceptions import ConfigError
from lab.tiny_demo.launched import Settings
from openclaw.launch.__main__ import build_parser
from openclaw.launch.machine import machine_problems
from openclaw.launch.plan import Recipe
from openclaw.launch.profiles import PROFILES
from openclaw.launch.resolve import make_plan
from slime.arguments.cluster import missing_devices
from slime.arguments.dry_run import of_machine


def refuse_bad_plan(settings: Settings, own_flags: Sequence[str], *, starts: bool = True) -> None:
    """Exit with code 2 and what is wrong, if the launcher would refuse the run. The model may still be missing.

    Args:
        settings: what the launcher is asked for.
        own_flags: flags of the demo, to suggest one for a mistyped flag.
        starts: whether the run will start here, so that this machine has to have the device.
    """
    environment = settings.environment(os.environ)
    launcher = build_parser()
    options, extra = launcher.parse_known_args(settings.launcher_words)
    flags = [*own_flags, *launcher.known_flags()]
    try:
        plan = make_plan(
            Recipe(settings.method, options.model, PROFILES[settings.profile]), extra, environment, own_flags=flags
        )
        problems = [problem for problem in [*plan.problems, *machine_problems(plan)] if not of_machine(problem)]
        if starts and settings.device == "cuda" and not problems:
            problems = [f"--device cuda: {problem}" for problem in missing_devices(plan.args, environment)]
    except ConfigError as error:
        problems = [str(error)]
    if problems:
        print("\n".join(f"run_tiny_cpu.sh: {problem}" for problem in problems), file=sys.stderr)
        raise SystemExit(2)
