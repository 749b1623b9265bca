"""The command line of the demo.

Guarantees: what is wrong with it is said before anything is built or started.
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import datetime
from pathlib import Path

from rich.console import Console

from groundwork.command_line import CommandLine, new_output_file, port_number
from groundwork.exceptions import ConfigError
from groundwork.machine import cuda_facts, torch_build
from lab.tiny_demo import live, resume
from lab.tiny_demo.launched import OF_DEMO, REPOSITORY, TINKER
from lab.tiny_models.cache import model_path
from lab.tiny_models.tastes import TASTES
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.launch.method_check import folder_problems
from openclaw.launch.methods import find_folder, find_method, methods_of, recommended
from openclaw.launch.variables import LaunchVariables
from openclaw.runtime.where import shown_path

DESCRIPTION = (
    "The whole loop on a CPU or one GPU: builds the tiny model, starts a run, lets a student talk to it, measures before and after. "
    "With --live you talk to it instead."
)


PLAIN = "plain"
CLIENTS = ("student", PLAIN)
PORT_NAMES = RuntimeVariables.declared("port").names


def method_of(name: str) -> tuple[str, str]:
    """Return what the launcher calls the method, and its name in titles; check the method of a folder.

    Raises:
        ConfigError: there is no such method, or it cannot work; the message says everything that is wrong.
    """
    found = next((each for each in methods_of() if each.config.name == name), None)
    if found is not None and found.variant:
        raise ConfigError(
            f"--method {name} is a variant, which the demo does not run; use {find_method(str(found.folder)).config.name}"
        )
    folder = found.folder if found else find_folder(name)
    if problems := folder_problems(folder, os.environ):
        raise ConfigError("\n".join([f"the method cannot work, see CONTRIBUTING.md: --method {name}", *problems]))
    return (name if found else str(folder)), find_method(str(folder)).config.name


def given(field: str, default: int) -> int:
    """Return what a variable of the launcher says under any of its names, or ``default``.

    Raises:
        ConfigError: it is not a number that the launcher would take.
    """
    value, source = LaunchVariables.declared(field).read(os.environ)
    return default if source == "default" else int(str(value))


def device_here() -> str:
    """Return ``cuda`` in an environment with CUDA's torch on a machine with a GPU, else ``cpu``; asks the driver only then."""
    built_for = torch_build()[1]
    return "cuda" if built_for and cuda_facts().devices else "cpu"


def ignored() -> list[str]:
    """Return a line per set variable that a launch script reads, and the demo decides itself."""
    declared = [*LaunchVariables.variables(), *RuntimeVariables.variables()]
    named = [(name, each.field) for each in declared if each.field in OF_DEMO for name in each.names]
    of_logs = f"HF_CKPT={shown_path(model_path())} python -m openclaw.launch --profile tiny_cpu --method combine"
    why = {"data_path": f"the demo learns from its student; to train on recorded conversations here, type: {of_logs}"}
    usual = "the demo brings its own model and folders; a launch script reads it"
    return [f"{name} is ignored: {why.get(field, usual)}" for name, field in named if os.environ.get(name)]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the options; unknown ones go to the launcher."""
    parser = CommandLine(prog="run_tiny_cpu.sh", description=DESCRIPTION)
    try:
        updates, seed = given("num_rollout", 16), given("seed", 0)
    except ConfigError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    for line in ignored():
        print(f"warning: {line}", file=sys.stderr)
    names = ", ".join(sorted(each.config.name for each in methods_of() if not each.variant))
    parser.add_argument(
        "--method",
        default=recommended().config.name,
        help=f"{names}, or the path of a method folder (default: %(default)s)",
    )
    parser.add_argument(
        "--device",
        choices=resume.DEVICES,
        default=device_here(),
        help="what trains, serves and judges: the CPU, one GPU, or a service of the Tinker interface (default: the GPU if there is one and the environment is for it; "
        "here: %(default)s)",
    )
    parser.add_argument(
        "--updates", type=int, default=updates, help="optimizer steps (default: UPDATES, or %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=seed, help="seed of the run and the student (default: SEED, or %(default)s)"
    )
    parser.add_argument(
        "--report", type=new_output_file, default=None, help="file for the report (default: in the run's folder)"
    )
    parser.add_argument("--gsm8k", type=Path, default=None, help="GSM8K file; measure the rule rate on it, too")
    parser.add_argument(
        "--live", action="store_true", help="no student: you talk to the model, and it learns until Ctrl-C"
    )
    parser.add_argument(
        "--keep-serving", action="store_true", help="after the report, serve and learn from you until Ctrl-C"
    )
    parser.add_argument(
        "--port",
        type=port_number,
        default=next((os.environ[name] for name in PORT_NAMES if os.environ.get(name)), "30000"),
        help="port of the API (default: PORT, or %(default)s)",
    )
    parser.add_argument(
        "--run-dir",
        type=Path,
        default=os.environ.get("RUN_DIR") or None,
        help="folder for logs, ledger and checkpoints (default: RUN_DIR, or runs/...)",
    )
    parser.add_argument(
        "--client",
        choices=CLIENTS,
        default=CLIENTS[0],
        help="student, or plain: a person whose client sends no header of ours and whose rule and words are in no corpus "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--taste",
        choices=[taste.name for taste in TASTES],
        default=None,
        help="what the plain client's person wants (default: the one of the seed)",
    )
    parser.add_argument("--sessions", type=int, default=8, help="concurrent conversations (default: %(default)s)")
    parser.add_argument("--max-turns", type=int, default=3, help="user messages per session (default: %(default)s)")
    parser.add_argument(
        "--heldout", type=int, default=256, help="held-out problems to measure on (default: %(default)s)"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        default=os.environ.get("RESUME", "") not in ("", "0"),
        help="continue the run in --run-dir, by default the newest one that was stopped (also: RESUME=1)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan, start nothing")
    options, options.launcher_arguments = parser.parse_known_args(argv)
    try:
        method, title = method_of(options.method)
    except ConfigError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    state = None
    if options.resume:
        options, state = resume.continued(parser, options, title, argv, REPOSITORY / "runs")
    options.method, options.title = method, title
    if options.updates < 1 or options.sessions < 1 or options.max_turns < 2 or options.heldout < 1:
        parser.error("--updates, --sessions and --heldout must be 1 or more, --max-turns 2 or more")
    if options.taste and options.client != PLAIN:
        parser.error(f"--taste {options.taste} is for the plain client; add --client plain")
    if options.client == PLAIN and options.taste is None:
        options.taste = TASTES[options.seed % len(TASTES)].name
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = f"{resume.folder_prefix(options.title, options.live, options.device)}{stamp}"
    options.run_dir = (options.run_dir or REPOSITORY / "runs" / folder).absolute()
    if options.live and (wrong := live.unused(parser, options)):
        parser.error(wrong)
    if options.live and options.device == TINKER and not os.environ.get("TINKER_BASE_URL"):
        parser.error("--live --device tinker needs a service that runs; type: openclaw-rl tinker --help")
    if wrong := resume.problem(options, state):
        parser.error(wrong)
    options.state = state or resume.State(resume.options_of(options))
    options.report_path = options.report or options.run_dir / "report.json"
    options.console, options.reported = Console(), False
    options.own_flags = parser.known_flags()
    return options
