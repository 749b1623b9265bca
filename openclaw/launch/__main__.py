"""``python -m openclaw.launch``: print a run's plan, or start it.

The process becomes the driver (``slime/train_async.py``), so signals and exit code are the driver's own.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from groundwork.command_line import CommandLine, as_list
from groundwork.exceptions import ConfigError
from openclaw.exceptions import OpenClawError
from openclaw.launch.known_names import name_warnings
from openclaw.launch.logs import add_log_options, check_log_options, take_in_logs
from openclaw.launch.machine import check_gpus, device_warnings, machine_problems, port_of_run
from openclaw.launch.method_check import plan_problems
from openclaw.launch.methods import find_method, method_file, methods_of
from openclaw.launch.plan import Plan
from openclaw.launch.profiles import DEFAULT_PROFILE, LORA_PROFILE, PROFILES
from openclaw.launch.report import STARTED_AS, continue_command, describe, describe_in_full
from openclaw.launch.resolve import make_plan
from slime.arguments.checkpoint import CONTINUE_VARIABLE
from slime.arguments.dry_run import of_machine


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


def method_help(argv: Sequence[str] | None) -> str:
    """Return the ``--help`` text on variables of the method in the command line, empty without a method."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--method")
    method = finder.parse_known_args(argv)[0].method
    if not method:
        return ""
    found = find_method(method)
    rows = [
        f"{each.name} (default: {'unset' if each.default is None else each.default}): {each.help}."
        for each in found.config.variables()
    ]
    return " ".join([f" Variables that {method_file(found.folder).name} declares:", *rows]) if rows else ""


def build_parser(of_method: str = "") -> CommandLine:
    """Return the launcher's own options; ``of_method`` is the help on a method's variables."""
    names = sorted(each.config.name for each in methods_of())
    parser = CommandLine(
        prog="python -m openclaw.launch",
        description="Start a run from its method, model and profile. Flags that are not listed here go to the trainer "
        "(see python slime/train_async.py --help); the last one wins.",
        epilog="Variables, flags and profiles: instructions/configuration.md. Scripts and the machines they need: the "
        "README.md of each method folder." + of_method.replace("%", "%%"),
    )
    parser.add_argument(
        "--method",
        required=True,
        metavar="|".join([*names, "FOLDER"]),
        help=f"{', '.join(names)}, or the path of a method folder",
    )
    parser.add_argument("--profile", choices=sorted(PROFILES), help=f"kind of machine (default: {DEFAULT_PROFILE})")
    parser.add_argument("--lora", action="store_true", help=f"train LoRA adapters (default profile: {LORA_PROFILE})")
    parser.add_argument("--model", help="shape in slime/scripts/models, checked against the checkpoint")
    parser.add_argument("--name", help="folder under runs/ (default: profile and method)")
    add_log_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="print and validate the plan, start nothing")
    parser.add_argument(
        "--verbose", action="store_true", help="print every variable, every flag and the command, also before a start"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Command line."""
    try:
        parser = build_parser(method_help(argv))
    except ConfigError as error:
        fail(str(error))
    options, extra = parser.parse_known_args(argv)
    profile = PROFILES[options.profile or (LORA_PROFILE if options.lora else DEFAULT_PROFILE)]
    if options.lora:
        profile = replace(profile, variables={**profile.variables, "USE_LORA": True})
    try:
        plan = make_plan(profile, options.method, options.model, extra, os.environ, options.name, parser.known_flags())
    except ConfigError as error:
        fail(str(error))
    try:
        check_log_options(options, plan.variables["data_path"].value)
    except ConfigError as error:
        fail(str(error))
    problems = [*plan.problems, *machine_problems(plan)]
    missing = [problem for problem in problems if of_machine(problem)]
    wrong = [problem for problem in problems if not of_machine(problem)]
    if of_method := plan_problems(plan):
        wrong += [
            *of_method,
            f"if it is the method's fault, mend and check it: python -m openclaw.method check {options.method}",
        ]
    if options.verbose:
        print(describe_in_full(plan))
    elif options.dry_run:
        print(describe(plan))
    for warning in name_warnings(os.environ, options.method):
        print(f"warning: {warning}", flush=True)
    if options.dry_run:
        for problem in missing:
            print(f"warning: not found on this machine: {problem}")
        for problem in device_warnings(plan):
            print(f"warning: this machine cannot run it: {problem}")
    if wrong:
        fail(as_list("the plan cannot work", wrong))
    if options.dry_run:
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
    read_logs_of(plan, options)
    for warning in plan.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    sys.stdout.flush()
    again = os.environ.get(CONTINUE_VARIABLE) or continue_command(
        plan, sys.argv[1:] if argv is None else argv, os.environ
    )
    environment = {**plan.environment, CONTINUE_VARIABLE: again}
    environment.pop(STARTED_AS, None)
    with port:  # the program that this process becomes holds it
        os.execve(plan.command[0], plan.command, environment)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--dry-run | head` ends quietly
    try:
        main()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
