"""What a start needs besides valid flags, and ``--dry-run``: show what a command line would start, and start nothing."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from groundwork.checkpoint_names import LATEST
from groundwork.command_line import nearest_path
from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.algorithm import algorithm_warnings, check_critic
from slime.arguments.backend import backend_line
from slime.arguments.checkpoint import CANNOT_WRITE, taken_folder
from slime.arguments.cluster import missing_devices, missing_machines
from slime.arguments.memory_budget import Budget, memory_problems
from slime.arguments.option import NOT_INSTALLED
from slime.arguments.placement import describe_placement, start_lines
from slime.arguments.plugins import missing_plugins, wrong_signatures
from slime.arguments.process_environment import environment_lines
from slime.tracking.redact import without_secrets

_CORE_SOURCES = "slime.rollout.data_source."


def missing_at_start(args: Arguments) -> list[str]:
    """Return one line per missing resource."""
    of_plugins = [*missing_plugins(args), *wrong_signatures(args)]
    return [*missing_devices(args), *no_prompts(args), *missing_prompt_file(args), *of_plugins]


def check_still_free(args: Arguments) -> None:
    """Raise ConfigError if another run wrote to the save folder while this one waited for GPUs."""
    critic = check_critic(args, LATEST) if args.use_critic else []
    if taken := [*taken_folder(args), *critic]:
        raise ConfigError("; ".join(taken))


def no_prompts(args: Arguments) -> list[str]:
    """Return a line if the core's data source has no prompt file."""
    if args.prompt_data or not _reads_prompts(args):
        return []
    return ["no prompts: add --prompt-data FILE, or --disable-rollout-global-dataset"]


def missing_prompt_file(args: Arguments) -> list[str]:
    """Return a line if the core's prompt file does not exist; a trailing ``@[a:b]`` is a slice."""
    if not args.prompt_data or not _reads_prompts(args) or Path(args.prompt_data.partition("@[")[0]).is_file():
        return []
    return [f"--prompt-data {args.prompt_data}: no such file{nearest_path(args.prompt_data)}"]


def _reads_prompts(args: Arguments) -> bool:
    return args.rollout_global_dataset and args.data_source_path.startswith(_CORE_SOURCES)


MISSING_PATH = "no such folder"
MODEL_COMMAND = "SLIME_MODEL_COMMAND"
"""The variable in which a launch script gives the command that downloads a model, to which its name and folder are added."""
WIDTH = 100


def of_machine(problem: str) -> bool:
    """Return whether a problem is specific to this machine, so that the plan may work on another."""
    return any(words in problem for words in (MISSING_PATH, NOT_INSTALLED, CANNOT_WRITE))


def show_plan(args: Arguments, argv: Sequence[str], problems: Sequence[str]) -> list[str]:
    """Print placement and command line; return the problems that hold on every machine.

    A missing folder or prompt file is only a warning, because the plan may be for another machine.
    """
    wrong = [problem for problem in problems if not of_machine(problem)]
    wrong += [*no_prompts(args), *missing_plugins(args), *wrong_signatures(args)]
    memory: list[str] = []
    budget = Budget(())
    if not wrong:
        memory, budget = memory_problems(args)
        args = args.changed(start_together=budget.together)
    try:
        lines = _layout_lines(args) if not wrong else []
        variables = environment_lines(args, os.environ) if not wrong else []
    except ConfigError as error:
        lines, variables, wrong = [], [], [str(error)]
    lines += ["run:", f"  model    {args.hf_checkpoint}"]
    lines += [f"  folder   {args.run_dir}"] if args.run_dir else []
    lines += [f"  {backend_line(args)}"] if not wrong else []
    lines += [f"  variable {line}" for line in variables]
    if not wrong:
        wrong += memory
        lines += [*budget.lines, *(f"warning: {warning}" for warning in (*algorithm_warnings(args), *budget.warnings))]
    lines += ["flags:", *flag_lines(argv)]
    missing = [*(problem for problem in problems if of_machine(problem)), *missing_prompt_file(args)]
    lines += [f"warning: not found on this machine: {with_command(problem)}" for problem in missing]
    lines += [f"warning: this machine cannot run it: {problem}" for problem in missing_devices(args)]
    if not wrong and (machines := missing_machines(args)):
        lines.append(f"warning: {machines}")
    if not wrong:
        lines.append("dry run: the plan is valid, nothing was started")
    print("\n".join(lines))
    return wrong


def flag_lines(argv: Sequence[str]) -> list[str]:
    """Return a command line as lines to read, each with whole flags, a flag beside its values and without secrets."""
    flags: list[str] = []
    for word in without_secrets(argv):
        if word.startswith("--") or not flags:
            flags.append(shlex.quote(word))
        else:
            flags[-1] += f" {shlex.quote(word)}"
    lines = [""]
    for flag in flags:
        if len(lines[-1]) + len(flag) > WIDTH and lines[-1]:
            lines.append("")
        lines[-1] += f"  {flag}"
    return lines


def with_command(problem: str) -> str:
    """Return a problem, followed by the command that brings the model, if it is about a missing one and a script knows it."""
    if command := os.environ.get(MODEL_COMMAND):
        return with_download(problem, lambda path: f"{command} {Path(path).name} --folder {shlex.quote(path)}")
    return problem


def with_download(problem: str, command_of: Callable[[str], str]) -> str:
    """Return a problem, followed by the command for its folder if it is about a missing model."""
    match = re.fullmatch(
        rf"--(?:hf-checkpoint|ref-load|prm-model-path) (.+): {MISSING_PATH}(; did you mean .+\?)?", problem
    )
    return problem if match is None else f"{problem}{' Or' if match[2] else ';'} get it with: {command_of(match[1])}"


def _layout_lines(args: Arguments) -> list[str]:
    """The roles on their GPUs, and the order in which they start."""
    placement = describe_placement(args)
    lines = [*placement.lines(), f"starts   {', then '.join(start_lines(placement))}"]
    return ["placement:", *(f"  {line}" for line in lines)]
