"""The options of ``python -m agentrl.harness``.

Guarantee: whatever cannot be driven is refused before anything starts, by an error that names the option.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import get_args

from agentrl.harness.addresses import GATEWAY_URL, server_address
from agentrl.harness.gateway import KEY_VARIABLE as GATEWAY_KEY
from agentrl.harness.run import LONGEST_RUN_S
from agentrl.rollout.play import Mode
from agentrl.web.options import KEY_VARIABLE as POOL_KEY
from agentrl.web.options import above_zero, count
from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError

PROG = "python -m agentrl.harness"
POOL_URL_VARIABLE = "AGENTRL_POOL_URL"
POOL_URL = "http://127.0.0.1:30200"
LONGEST_TASK = 256
"""Characters of a task's id, see `agentrl.protocol`."""


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    parser = CommandLine(
        prog=PROG,
        description="Let an unmodified agent program work on tasks of a pool; the gateway trains on what it asks.",
        epilog=f"Keys come from the environment only: {POOL_KEY} of the pool, {GATEWAY_KEY} of the gateway.",
    )
    add = parser.add_argument
    add("--harness", required=True, metavar="NAME", help="agent program to run, one that the pool offers")
    add("--tasks", type=Path, metavar="FILE", help="ids of the pool's tasks, one a line; - reads standard input")
    add("--task", action="append", default=[], metavar="ID", help="a task's id; repeat it for more")
    add("--group-size", type=_group, default=8, metavar="N", help="runs of a task that are compared (%(default)s)")
    add(
        "--spare",
        type=_spare,
        default=0,
        metavar="N",
        help="begin N more runs per group; the first that end are taken, which favours short ones (%(default)s)",
    )
    add("--parallel", type=count, default=16, metavar="N", help="most runs at a time (%(default)s)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=count, metavar="N", help="how often each task has its group (default: no end)")
    length.add_argument("--groups", type=count, metavar="N", help="how many groups in all (default: no end)")
    add("--timeout-s", type=_run_seconds, metavar="S", help="most seconds of a run (default: what each task says)")
    add("--tries", type=count, default=3, metavar="N", help="runs for each member of a group (%(default)s)")
    add(
        "--reward",
        choices=get_args(Mode),
        default="binary",
        help="reward of a score f: 1 if f is at least 1, else -1; or 2f - 1; or f (%(default)s)",
    )
    add("--model", metavar="NAME", help="name that the program sends (default: the gateway's)")
    add(
        "--most-ready",
        type=count,
        default=512,
        metavar="N",
        help="begin no group while more rollouts wait for the trainer, because they would grow stale (%(default)s)",
    )
    add("--seed", type=int, default=0, metavar="N", help="of the order of tasks (%(default)s)")
    add("--records", type=Path, metavar="FOLDER", help="keep a line per run; the same command goes on from there")
    pool = os.environ.get(POOL_URL_VARIABLE) or POOL_URL
    add(
        "--pool-url",
        type=_address,
        default=pool,
        metavar="URL",
        help=f"pool or router ({POOL_URL_VARIABLE} or {POOL_URL})",
    )
    add("--gateway-url", type=_address, default=GATEWAY_URL, metavar="URL", help="gateway (%(default)s)")
    return parser


def read_tasks(options: argparse.Namespace) -> list[str]:
    """Return the ids that the options name, in their order; empty lines and lines that begin with # are left out.

    Raises:
        ConfigError: there is none, or the file cannot be read.
    """
    found: list[str] = list(options.task)
    if options.tasks is not None:
        try:
            text = sys.stdin.read() if str(options.tasks) == "-" else options.tasks.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(
                f"--tasks {options.tasks}: {reason}; name a file with a task's id on each line"
            ) from error
        found += [line.strip() for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    if not found:
        raise ConfigError("there is no task; add --tasks FILE or --task ID")
    if long := next((task for task in found if len(task) > LONGEST_TASK), None):
        raise ConfigError(f"{long[:40]!r}... is not a task's id; ids have at most {LONGEST_TASK} characters")
    return found


def _group(text: str) -> int:
    number = count(text)
    if not 2 <= number <= 1024:
        raise argparse.ArgumentTypeError(
            f"invalid group size {text}: must be 2 to 1024, because rewards are compared within a group"
        )
    return number


def _spare(text: str) -> int:
    return 0 if text == "0" else count(text)


def _run_seconds(text: str) -> float:
    seconds = above_zero(text)
    if seconds > LONGEST_RUN_S:
        raise argparse.ArgumentTypeError(f"{text} is too long; a run takes at most {LONGEST_RUN_S:g} s")
    return seconds


def _address(text: str) -> str:
    if (address := server_address(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address of a server; write for example {GATEWAY_URL}")
    return address
