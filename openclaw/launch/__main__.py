"""``python -m openclaw.launch``: print a run's plan, or start it.

A run is a `Recipe`: a method (``--method``) or a task (``--task``), a model and a machine. The process becomes the driver
(``slime/train_async.py``), so signals and exit code are the driver's own.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from groundwork.command_line import CommandLine, as_list
from groundwork.exceptions import ConfigError
from groundwork.start_timeline import LAUNCHER, Beginning, Step
from openclaw.exceptions import OpenClawError
from openclaw.launch.guides import OF_SERVICE, words_of_texts
from openclaw.launch.logs import add_log_options, check_log_options, take_in_logs
from openclaw.launch.machine import check_gpus, device_warnings, machine_problems, missing_rows, port_of_run
from openclaw.launch.method_check import plan_problems, teacher_line
from openclaw.launch.methods import FoundMethod, find_method, method_file, methods_of
from openclaw.launch.names import name_warnings
from openclaw.launch.plan import Plan, Recipe
from openclaw.launch.profiles import DEFAULT_PROFILE, LORA_PROFILE, PROFILES
from openclaw.launch.report import STARTED_AS, continue_command, describe, describe_in_full, warning_lines
from openclaw.launch.resolve import make_plan
from openclaw.launch.task import FoundTask, TaskConfig, find_task, task_file, task_folders
from openclaw.launch.variables import LaunchVariables
from openclaw.models.places import released
from slime.arguments.checkpoint import CONTINUE_VARIABLE
from slime.arguments.cluster import missing_machines
from slime.arguments.dry_run import of_machine
from slime.arguments.model_shape import shape_named

PLAYED_BY = "PLAYED_BY"
"""The variable in which scripts/launch.sh names the program that plays the tasks with the model of a server."""
SERVED = "--served"
SERVED_HELP = (
    f"{SERVED} plays with the model of a server instead of training, and has options of its own: {SERVED} --help"
)


def fail(message: str) -> NoReturn:
    """Exit with code 2 and one message."""
    print(f"launch: {message}", file=sys.stderr)
    raise SystemExit(2)


def read_logs_of(plan: Plan, options: argparse.Namespace) -> None:
    """Take the logs of ``DATA_PATH`` into the run's ledger, and print what they hold; in a dry run only print it."""
    if not plan.variables["data_path"].value or plan.variables["node_rank"].value:
        return
    try:
        for line in take_in_logs(plan, options, dry=options.dry_run):
            print(line, flush=True)
    except (OpenClawError, ConfigError) as error:
        fail(str(error))


@contextmanager
def served_explained() -> Iterator[None]:
    """Name --served if the block ends with wrong flags, and the script has it."""
    try:
        yield
    except SystemExit:
        if os.environ.get(PLAYED_BY):
            print(f"launch: {SERVED_HELP}", file=sys.stderr)
        raise


def asked_for(argv: Sequence[str] | None) -> FoundMethod | FoundTask | None:
    """Return the method or task in the command line; None without one.

    Raises:
        ConfigError: there is no such method or task.
    """
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--method")
    finder.add_argument("--task")
    named = finder.parse_known_args(argv)[0]
    if named.method and named.task:
        raise ConfigError(f"--method {named.method} --task {named.task}: a run has one of them; leave the other out")
    return find_method(named.method) if named.method else find_task(named.task) if named.task else None


def help_on(found: FoundMethod | FoundTask | None) -> str:
    """Return the ``--help`` text on variables of a method or task."""
    if found is None:
        return ""
    variables = found.variables() if isinstance(found, FoundTask) else found.config.variables()
    file = (task_file if isinstance(found, FoundTask) else method_file)(found.folder)
    rows = [
        f"{' or '.join((variable.name, *variable.flags))} (default: {'unset' if variable.default is None else variable.default}): {variable.help}."
        for variable in variables
    ]
    return " ".join([f" Variables that {file.name} declares:", *rows]) if rows else ""


def build_parser(found: FoundMethod | FoundTask | None = None) -> CommandLine:
    """Return the launcher's own options, with help on the variables of a method or task."""
    names = sorted(method.config.name for method in methods_of())
    tasks = [folder.name.removesuffix("-rl") for folder in task_folders()]
    parser = CommandLine(
        prog="python -m openclaw.launch",
        description="Start a run from its method or task, model and profile. Other flags set variables "
        "(--batch-size 8 is BATCH_SIZE=8) or go to the trainer (see python slime/train_async.py --help); the last one wins.",
        epilog="Variables, flags and profiles: instructions/configuration.md. Scripts and the machines they need: the "
        "README.md of each folder."
        + (f" {SERVED_HELP}." if os.environ.get(PLAYED_BY) else "")
        + help_on(found).replace("%", "%%"),
    )
    parser.add_argument(
        "--method",
        required=not isinstance(found, FoundTask),
        metavar="|".join([*names, "FOLDER"]),
        help=f"learn from conversations: {', '.join(names)}, or the path of a method folder",
    )
    parser.add_argument(
        "--task",
        metavar="|".join([*tasks, "FOLDER"]),
        help=f"learn from tasks in environments: {', '.join(tasks)}, or the path of an agent folder",
    )
    profiles = [*found.config.profiles] if isinstance(found, FoundTask) else sorted(PROFILES)
    usual = profiles[0] if isinstance(found, FoundTask) else DEFAULT_PROFILE
    parser.add_argument("--profile", choices=profiles, help=f"kind of machine (default: {usual})")
    parser.add_argument("--lora", action="store_true", help=f"train LoRA adapters (default profile: {LORA_PROFILE})")
    parser.add_argument("--step-judge", action="store_true", help="with --task: a judge scores each step")
    parser.add_argument("--evaluate", action="store_true", help="with --task: play held-out tasks, without a trainer")
    parser.add_argument("--model", help="shape in slime/scripts/models, checked against the checkpoint")
    parser.add_argument("--name", help="folder under runs/ (default: profile and method or task)")
    if not isinstance(found, FoundTask):
        add_log_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="print and validate the plan, start nothing")
    parser.add_argument(
        "--verbose", action="store_true", help="print every variable, every flag and the command, also before a start"
    )
    return parser


def recipe_of(options: argparse.Namespace, found: FoundMethod | FoundTask) -> Recipe:
    """Return what the options ask for.

    Raises:
        ConfigError: the options do not fit together.
    """
    if isinstance(found, FoundTask):
        if options.evaluate and options.step_judge:
            raise ConfigError("--evaluate judges no step; leave out --step-judge")
        profile = found.profile(options.profile, judge=options.step_judge)
    else:
        if wrong := [flag for flag in ("--step-judge", "--evaluate") if getattr(options, flag[2:].replace("-", "_"))]:
            raise ConfigError(f"{wrong[0]} is for a task; leave it out, or name one with --task")
        profile = PROFILES[options.profile or (LORA_PROFILE if options.lora else DEFAULT_PROFILE)]
    if options.lora:
        profile = replace(profile, variables={**profile.variables, "USE_LORA": True})
    what = options.task or options.method
    return Recipe(what, shape_of(options.model), profile, task=bool(options.task), evaluates_only=options.evaluate)


def shape_of(model: str | None) -> str | None:
    """Return the shape to check the checkpoint against, in any spelling; print which model a run has whose name nobody released.

    The user's own checkpoint is then taken as it is.
    """
    if model is None or (nearest := released(model)) == model:
        return model and (shape_named(model) or model)
    own = LaunchVariables.declared("hf_ckpt").read(os.environ)[1]
    if own == "default":
        print(f"launch: there is no {model}; this run has {nearest}, the nearest model", flush=True)
        return nearest
    print(f"launch: there is no {model}; this run has the model of {own}, whatever its shape", flush=True)
    return None


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    typed = sys.argv[1:] if argv is None else argv
    beginning = Beginning.read()
    beginning.mark(LAUNCHER, Step.LOADED)
    try:
        words = [*words_of_texts(os.environ), *typed]
        asked = asked_for(words)
        parser = build_parser(asked)
        options, extra = parser.parse_known_args(words)
        assert asked is not None  # the parser requires one
        recipe = recipe_of(options, asked)
        with served_explained():
            plan = make_plan(recipe, extra, os.environ, options.name, parser.known_flags())
        if not recipe.task:
            unused = check_log_options(options, plan.variables["data_path"].value)
            plan = replace(plan, notes=(*plan.notes, *unused))
    except ConfigError as error:
        fail(str(error))
    missing = show_and_check(plan, options, asked)
    if options.dry_run:
        if not recipe.task:
            read_logs_of(plan, options)
        print("dry run: the plan is valid, nothing was started")
        return
    try:
        check_gpus(plan)
        if missing:
            fail(as_list("the plan cannot work", missing))
        port = port_of_run(plan)
    except (ConfigError, OSError) as error:
        fail(str(error))
    for line in warning_lines(plan):
        print(line, file=sys.stderr)
    again = os.environ.get(CONTINUE_VARIABLE) or continue_command(plan, typed, os.environ)
    environment = {**plan.environment, CONTINUE_VARIABLE: again}
    beginning.mark(LAUNCHER, Step.PLANNED)
    environment |= beginning.carried()
    environment.pop(STARTED_AS, None)
    environment.pop(PLAYED_BY, None)
    if isinstance(plan.own, TaskConfig):
        start_task(replace(plan, environment=environment), plan.own)
    read_logs_of(plan, options)
    sys.stdout.flush()
    with port:  # the program that this process becomes holds it
        os.execve(plan.command[0], plan.command, environment)


def show_and_check(plan: Plan, options: argparse.Namespace, found: FoundMethod | FoundTask) -> list[str]:
    """Print the plan and its warnings; return what is missing on this machine. Exit if the plan works on none."""
    problems, teacher = [*plan.problems, *machine_problems(plan)], None
    try:
        teacher = None if problems else teacher_line(plan)
    except ConfigError as error:
        problems.append(str(error))
    missing = [*(problem for problem in problems if of_machine(problem)), *missing_rows(plan)]
    if isinstance(plan.own, TaskConfig) and (lacks := plan.own.missing_here(plan.environment)):
        missing.append(lacks)
    wrong = [problem for problem in problems if not of_machine(problem)]
    if of_plugins := plan_problems(plan):
        check = f"if it is the method's fault, mend and check it: python -m openclaw.method check {options.method}"
        wrong += [*of_plugins, *([] if plan.recipe.task else [check])]
    if options.verbose:
        print(describe_in_full(plan))
    elif options.dry_run:
        print(describe(plan))
    if teacher:
        print(teacher, flush=True)
    read = OF_SERVICE.get(plan.profile.service or "", ())
    unread = {name: value for name, value in os.environ.items() if name not in read}
    for warning in name_warnings(unread, found):
        print(f"warning: {warning}", flush=True)
    if options.dry_run:
        for problem in missing:
            print(f"warning: not found on this machine: {problem}")
        for problem in device_warnings(plan):
            print(f"warning: this machine cannot run it: {problem}")
        if plan.recipe.task and not wrong and (machines := missing_machines(plan.args)):
            print(f"warning: {machines}")
    if wrong:
        fail(as_list("the plan cannot work", wrong))
    return missing


def start_task(plan: Plan, own: TaskConfig) -> NoReturn:
    """Write the rows of tasks, and become the run's first process; a machine other than the head only joins."""
    sys.stdout.flush()
    if plan.variables["node_rank"].value:
        os.execve(plan.command[0], plan.command, plan.environment)
    os.environ.update(plan.environment)  # which tasks there are depends on the profile, too
    run_dir, only = Path(plan.args.run_dir), plan.recipe.evaluates_only
    run_dir.mkdir(parents=True, exist_ok=True)
    try:
        for line in own.write_rows(run_dir, trains=not only, evaluates=only or own.interval is not None):
            print(f"launch: {line}", flush=True)
    except ConfigError as error:
        fail(str(error))
    own.start(plan)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--dry-run | head` ends quietly
    try:
        main()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
