"""``python -m agentrl.harness``: lets an agent program work on tasks, and rewards its episodes at the gateway.

Guarantees: errors are one line, with exit status 2 for bad input and 1 for a server that has gone, or if a group that was
asked for is not finished. The first SIGINT or SIGTERM ends all runs, gives their leases back and deletes their episodes; the exit status is
then 130 or 143. It ends with its parent if a launcher started it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence

from rich.console import Console

from agentrl.client import HttpLeases
from agentrl.exceptions import AgentError
from agentrl.harness.driver import Driver, Plan
from agentrl.harness.gateway import KEY_VARIABLE as GATEWAY_KEY
from agentrl.harness.gateway import AwayError, EpisodeGateway, RefusedError
from agentrl.harness.options import PROG, build_parser, check_gateway, check_plan, check_pool, read_tasks
from agentrl.harness.progress import ProgressDisplay
from agentrl.harness.records import Records, schedule_of
from agentrl.harness.run import Agent, AgentRuns
from agentrl.web.options import KEY_VARIABLE as POOL_KEY
from groundwork.exceptions import ConfigError
from groundwork.process import watch_lifeline

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
