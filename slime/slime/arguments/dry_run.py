"""``--dry-run`` of the training programs: show what a command line would start and its problems; start nothing."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from slime.args import Arguments
from slime.arguments.algorithm import algorithm_warnings
from slime.arguments.at_start import missing_prompt_file, no_prompts
from slime.arguments.backend import backend_line
from slime.arguments.devices import missing_devices
from slime.arguments.machines import missing_machines
from slime.arguments.megatron import NOT_INSTALLED
from slime.arguments.memory_budget import memory_problems
from slime.arguments.placement import describe_placement, start_lines
from slime.arguments.plugin_names import missing_plugins
from slime.arguments.process_environment import environment_lines
from slime.arguments.written import CANNOT_WRITE
from slime.exceptions import ConfigurationError

MISSING_PATH = "no such folder"


def of_machine(problem: str) -> bool:
    """Return whether a problem is specific to this machine, so that the plan may work on another."""
    return any(words in problem for words in (MISSING_PATH, NOT_INSTALLED, CANNOT_WRITE))


def show_plan(args: Arguments, argv: Sequence[str], problems: Sequence[str]) -> list[str]:
    """Print placement and command line; return the problems that hold on every machine.

    A missing folder or prompt file is only a warning, because the plan may be for another machine.
    """
    wrong = [problem for problem in problems if not of_machine(problem)]
    wrong += [*no_prompts(args), *missing_plugins(args)]
    try:
        lines = [*_layout_lines(args), backend_line(args)] if not wrong else []
        lines += [f"variable {line}" for line in environment_lines(args, os.environ)] if not wrong else []
    except ConfigurationError as error:
        lines, wrong = [], [str(error)]
    if not wrong:
        memory, budget = memory_problems(args)
        wrong += memory
        lines += [*budget.lines, *(f"warning: {warning}" for warning in (*algorithm_warnings(args), *budget.warnings))]
    lines += [f"model    {args.hf_checkpoint}", f"flags    {shlex.join(argv)}"]
    missing = [*(problem for problem in problems if of_machine(problem)), *missing_prompt_file(args)]
    lines += [f"warning: not found on this machine: {problem}" for problem in missing]
    lines += [f"warning: this machine cannot run it: {problem}" for problem in missing_devices(args)]
    if not wrong and (machines := missing_machines(args)):
        lines.append(f"warning: {machines}")
    if not wrong:
        lines.append("dry run: the plan is valid, nothing was started")
    print("\n".join(lines))
    return wrong


def _layout_lines(args: Arguments) -> list[str]:
    """The roles on their GPUs, and the order in which they start."""
    placement = describe_placement(args)
    return [*placement.lines(), f"starts   {', then '.join(start_lines(placement))}"]
