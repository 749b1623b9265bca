"""``python -m agentrl.harness``: lets an agent program work on tasks, and rewards its episodes at the gateway.

Guarantees: errors are one line, with exit status 2 for bad input and 1 for a server that has gone, or if a group that was asked for
is not finished. The first SIGINT or SIGTERM ends all runs, gives their leases back and deletes their episodes; the exit status is
then 130 or 143. It ends with its parent if a launcher started it.

Whatever cannot be driven is refused before anything starts, by an error that names the option: the plan fits the
gateway's bounds, gateway and pool answer, rewards train, and the pool has every task. Nothing is left behind: a lease that was
asked for is given back.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from rich.console import Console

from agentrl.client import HttpLeases, new_request_id
from agentrl.exceptions import AgentError, CapacityError, InvalidError, NotFoundError
from agentrl.harness.driver import Driver, Plan
from agentrl.harness.gateway import KEY_VARIABLE as GATEWAY_KEY
from agentrl.harness.gateway import AwayError, EpisodeGateway, RefusedError
from agentrl.harness.interface import GATEWAY_URL, server_address
from agentrl.harness.progress import ProgressDisplay
from agentrl.harness.records import Records, schedule_of
from agentrl.harness.run import MAX_RUN_SECONDS, Agent, AgentRuns, key_seconds
from agentrl.protocol import LeaseRequest, LeaseService
from agentrl.rollout.play import Mode
from agentrl.web.options import KEY_VARIABLE as POOL_KEY
from agentrl.web.options import above_zero, count
from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError
from groundwork.process import watch_lifeline
from openclaw.config.bounds import EPISODE_GROUP, EPISODE_SECONDS

AT_A_TIME = 8
TOO_LARGE = "larger_than_pool"
PROG = "python -m agentrl.harness"
POOL_URL_VARIABLE = "AGENTRL_POOL_URL"
POOL_URL = "http://127.0.0.1:30200"
MAX_TASK = 256
"""Characters of a task's id, see `agentrl.protocol`."""


def check_plan(plan: Plan, timeout_s: float | None) -> None:
    """See that the gateway allows groups of this size, and that the keys of their episodes can live as long as they take.

    Args:
        plan: what is driven.
        timeout_s: most seconds of a run; None, which tasks decide, counts as the longest that a pool allows.

    Raises:
        ConfigError: it does not; names the options to change.
    """
    if plan.members > EPISODE_GROUP.most:
        raise ConfigError(
            f"--group-size and --spare are {plan.members} together; a group has at most {EPISODE_GROUP.most} runs"
        )
    needed = key_seconds(plan.waves, timeout_s or MAX_RUN_SECONDS)
    if needed > EPISODE_SECONDS.most:
        raise ConfigError(
            f"a group may take {plan.waves} runs one after another, {needed:.0f} s, but an episode lasts at most "
            f"{EPISODE_SECONDS.most} s; raise --parallel, or lower --timeout-s, --tries or --group-size"
        )


async def check_gateway(gateway: EpisodeGateway) -> None:
    """See that the gateway answers, takes the key, and trains rewards.

    Raises:
        AwayError: it does not answer.
        ConfigError: the key is wrong, or its method learns from no reward.
    """
    try:
        overview = await gateway.overview()
    except RefusedError as error:
        raise ConfigError(f"the gateway has no episodes ({error}); is --gateway-url a gateway's?") from error
    if not overview.trains_rewards:
        raise ConfigError("the gateway's method learns from no reward; start it with rl, combine or hybrid")


async def check_pool(service: LeaseService, tasks: Iterable[str]) -> None:
    """See that the pool answers, takes the key, and can lend every task; a full pool is none of these.

    Raises:
        AgentError: it does not answer.
        ConfigError: the key is wrong, or it lacks a task or room for one.
    """
    try:
        await service.status()
    except InvalidError as error:
        raise ConfigError(f"the pool refuses the request: {error}") from error
    some = asyncio.Semaphore(AT_A_TIME)

    async def check(task: str) -> None:
        async with some:
            await _check_task(service, task)

    try:
        async with asyncio.TaskGroup() as checks:
            for task in dict.fromkeys(tasks):
                checks.create_task(check(task))
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None


async def _check_task(service: LeaseService, task: str) -> None:
    request = LeaseRequest(request_id=new_request_id(), task_id=task, wait_s=0)
    try:
        leased = await service.lease(request)
    except NotFoundError as error:
        raise ConfigError(
            f"the pool has no task {task!r}; correct --tasks, or start the pool with its --env"
        ) from error
    except CapacityError as error:
        if error.code == TOO_LARGE:
            raise ConfigError(f"the pool cannot lend {task!r}: {error}") from error
        return
    await service.release(leased.lease_id)


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
    if long := next((task for task in found if len(task) > MAX_TASK), None):
        raise ConfigError(f"{long[:40]!r}... is not a task's id; ids have at most {MAX_TASK} characters")
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
    if seconds > MAX_RUN_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is too long; a run takes at most {MAX_RUN_SECONDS:g} s")
    return seconds


def _address(text: str) -> str:
    if (address := server_address(text)) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address of a server; write for example {GATEWAY_URL}")
    return address


FAILED_EXIT = 1
CONFIG_EXIT = 2
SIGNALLED_EXIT = 128
"""Plus the number of the signal."""
START_S = 10.0
"""How long servers may be away at the start."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the driver with the options ``argv``; return the exit status."""
    watch_lifeline()
    options = build_parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return asyncio.run(_until_signal(options, read_tasks(options)))
    except ConfigError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return CONFIG_EXIT
    except (AgentError, AwayError, RefusedError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return FAILED_EXIT
    except KeyboardInterrupt:  # the second signal: at once
        return SIGNALLED_EXIT + signal.SIGINT


async def _until_signal(options: argparse.Namespace, tasks: Sequence[str]) -> int:
    """Drive until the end or the first signal; errors as `drive`."""
    loop = asyncio.get_running_loop()
    driving = asyncio.create_task(drive(options, tasks), name="drive")
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        for item in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(item)
        driving.cancel()

    for item in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(item, stop, item)
    try:
        return await driving
    except asyncio.CancelledError:
        if not received:
            raise
        return SIGNALLED_EXIT + received[0]


def plan_of(options: argparse.Namespace, tasks: Sequence[str]) -> Plan:
    """Return what the options say about the groups of the tasks."""
    return Plan(
        tasks=tasks,
        group_size=options.group_size,
        spare=options.spare,
        parallel=options.parallel,
        groups=options.epochs * len(tasks) if options.epochs else options.groups,
        tries=options.tries,
        most_ready=options.most_ready,
        seed=options.seed,
        metadata={"harness": options.harness},
    )


async def drive(options: argparse.Namespace, tasks: Sequence[str]) -> int:
    """Drive the tasks; return the exit status.

    Raises:
        ConfigError: an option, a key or a task is wrong.
        AwayError: pool or gateway have gone.
        AgentError: the pool does not answer at the start.
    """
    plan = plan_of(options, tasks)
    groups = plan.groups
    check_plan(plan, options.timeout_s)
    pool_key, gateway_key = os.environ.get(POOL_KEY) or None, os.environ.get(GATEWAY_KEY) or None
    async with (
        HttpLeases(options.pool_url, pool_key, unreachable_s=START_S) as pool,
        EpisodeGateway(options.gateway_url, gateway_key, away_s=START_S) as gateway,
    ):
        await check_gateway(gateway)
        await check_pool(pool, tasks)
        model = options.model or await gateway.model()
    agent = Agent(harness=options.harness, model=model, timeout_s=options.timeout_s, reward=options.reward)
    records = Records(options.records, schedule_of(tasks, options.harness, options.group_size, options.seed))
    finished = sum(number < groups for number in records.finished()) if groups else len(records.finished())
    display = ProgressDisplay(Console(), groups, finished)
    try:
        async with (
            HttpLeases(options.pool_url, pool_key) as pool,
            EpisodeGateway(options.gateway_url, gateway_key) as gateway,
        ):
            with display:
                await Driver(plan, pool, gateway, AgentRuns(pool, gateway, agent), records, display).drive()
    finally:
        display.summary()
    finished += display.tally.finished
    if groups is None or finished == groups:
        return 0
    print(f"{PROG}: {groups - finished} of {groups} groups are not finished", file=sys.stderr)
    return FAILED_EXIT


if __name__ == "__main__":
    sys.exit(main())
