"""``python -m agentrl.pool``: lends out the environments of this machine.

Guarantees: errors are one line, with exit status 2 for bad input. Before it listens, it ends what a crashed server with the same
ledger left, and it has proved that its sandboxes hold. On SIGTERM it closes all environments. It ends with its parent if a launcher
started it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

from agentrl.bridges.verifiers import PREFIX, verifiers_environment
from agentrl.environment import Environment, Registry, Weight, load_environment
from agentrl.exceptions import AgentError
from agentrl.harness.interface import GATEWAY_URL
from agentrl.harness.offer import NAMES as HARNESSES
from agentrl.harness.offer import offer_harnesses
from agentrl.leases.lease import CLOSE_TIMEOUTS, CloseTimeouts
from agentrl.leases.metrics import PoolMetrics
from agentrl.leases.pool import Capacity, Pool
from agentrl.processes import ProcessLedger
from agentrl.sandbox.providers import NAMES, SandboxSettings, provider
from agentrl.sandbox.streams import sweep_doors
from agentrl.web.app import create_app
from agentrl.web.options import above_zero, add_server_options, count, listen, read_key
from agentrl.web.serve import leave_soon, serve
from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError
from groundwork.machine import usable_cores, usable_memory_mib
from groundwork.process import watch_lifeline

logger = logging.getLogger(__name__)
PROG = "python -m agentrl.pool"
PORT = 30200
LEDGER = Path("runs/agentrl/pool.sqlite")
CONFIG_EXIT = 2
FAILED_EXIT = 1


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    parser = CommandLine(prog=PROG, description="Lend out environments that agents act in, by lease.")
    add = parser.add_argument
    add(
        "--env",
        action="append",
        required=True,
        metavar="MODULE.CLASS",
        help="environment to offer, a subclass of agentrl.environment.Environment, or verifiers:NAME; repeat it for more",
    )
    add("--slots", type=count, required=True, metavar="N", help="most environments at a time")
    add(
        "--memory-mib",
        type=count,
        metavar="N",
        help="memory of all environments, in MiB (default: that of this process)",
    )
    add("--cpu", type=above_zero, metavar="N", help="cores of all environments (default: those of this process)")
    add(
        "--ledger",
        type=Path,
        default=LEDGER,
        metavar="FILE",
        help="record of the environments' processes; one server uses a file at a time (%(default)s)",
    )
    add(
        "--close-seconds",
        type=above_zero,
        default=CLOSE_TIMEOUTS.close_s,
        metavar="S",
        help="time to close an environment; then its processes are killed, and closing is tried again (%(default)g)",
    )
    sandbox = SandboxSettings()
    add(
        "--sandbox",
        choices=NAMES,
        default=sandbox.provider,
        help="what runs the programs of agents, for environments that run any (%(default)s)",
    )
    add("--sandbox-image", metavar="NAME", help="image of docker and podman where a task names none, template of e2b")
    add("--sandbox-runtime", metavar="NAME", help="runtime of docker and podman, for example runsc")
    add(
        "--harness",
        action="append",
        default=[],
        metavar="NAME",
        help="agent program that clients may run, for environments that run any: "
        f"{', '.join((*HARNESSES, 'or MODULE.CLASS of your own'))}; repeat it for more",
    )
    add(
        "--gateway-url",
        default=GATEWAY_URL,
        metavar="URL",
        help="gateway that agent programs ask for their model (%(default)s)",
    )
    add_server_options(parser, PORT)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the pool with the options ``argv``; return the exit status."""
    watch_lifeline()
    options = build_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        return asyncio.run(run(options))
    except ConfigError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return CONFIG_EXIT
    except AgentError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return FAILED_EXIT


async def run(options: argparse.Namespace) -> int:
    """Serve until a signal; return the exit status, 1 if an environment could not be closed or does not end.

    Raises:
        ConfigError: an option is wrong.
        InfraError: an earlier server's processes do not end, or sandboxes do not hold here.
    """
    key = read_key(options.host, os.environ)
    environments = [_environment(name) for name in dict.fromkeys(options.env)]
    if options.harness and options.sandbox == "e2b":
        raise ConfigError("an e2b sandbox has no way to the gateway; for --harness choose bubblewrap, docker or podman")
    offer_harnesses(environments, options.harness, options.gateway_url)
    tasks = Registry(environments)
    size = Weight(options.memory_mib or usable_memory_mib(), options.cpu or usable_cores())
    capacity = Capacity(options.slots, size)
    timeouts = CloseTimeouts(close_s=options.close_seconds)
    registry = CollectorRegistry()
    listening = listen(options.host, options.port)
    ledger = ProcessLedger(options.ledger)
    unclosed = 0
    try:
        pool = Pool(tasks, capacity, ledger, PoolMetrics(registry), timeouts=timeouts)

        async def end() -> None:
            nonlocal unclosed
            unclosed = await pool.stop(timeouts.close_s + 2 * timeouts.cancel_grace_s)

        if left := await pool.start():
            logger.warning("ended %d process groups that an earlier server left", left)
        settings = SandboxSettings(options.sandbox, options.sandbox_image, options.sandbox_runtime)
        await prepare_sandboxes(environments, settings, ledger.pool)
        if left := sweep_doors(ledger.pool):
            logger.warning("removed %d doors that an earlier server left", left)
        app = create_app(pool, registry, key=key, most_body_bytes=options.max_body_bytes)
        await serve(app, listening, PROG.removeprefix("python -m "), end)
    finally:
        ledger.close()
        listening.close()
    leave_soon(FAILED_EXIT)
    return FAILED_EXIT if unclosed else 0


async def prepare_sandboxes(environments: Sequence[type[Environment]], settings: SandboxSettings, pool: str) -> None:
    """Give the environments that run programs of agents their sandboxes, once these are proved to hold.

    Args:
        environments: of the pool; those without a provider run no such program.
        settings: which sandboxes.
        pool: name of the pool, whose leftovers are ended.

    Raises:
        ConfigError: the settings do not fit each other.
        InfraError: a promise of the sandbox does not hold on this machine, or a leftover does not end.
    """
    sandboxed = [environment for environment in environments if environment.provider is not None]
    if not sandboxed:
        return
    chosen = provider(settings)
    await chosen.check()
    if left := await chosen.sweep(pool):
        logger.warning("ended %d sandboxes that an earlier server left", left)
    for environment in sandboxed:
        environment.provider = chosen


def _environment(name: str) -> type[Environment]:
    """Return the class of an environment; see `load_environment` and `verifiers_environment`."""
    return verifiers_environment(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else load_environment(name)


if __name__ == "__main__":
    sys.exit(main())
