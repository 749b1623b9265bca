"""``python -m agentrl.router``: one address for the pools of several machines.

Guarantees: errors are one line, with exit status 2 for bad input. It keeps no state that a restart would lose.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence

import httpx
from prometheus_client import CollectorRegistry

from agentrl.client.http import HttpLeases
from agentrl.deadlines import ROUTER_MARGIN_S
from agentrl.routing import NAME, Router
from agentrl.web.app import create_app
from agentrl.web.options import KEY_VARIABLE, add_server_options, listen, read_key
from agentrl.web.serve import serve
from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError
from groundwork.process import watch_lifeline

PROG = "python -m agentrl.router"
PORT = 30210
CONFIG_EXIT = 2
UNREACHABLE_S = 5.0
"""How long a worker that cannot be reached is tried before the next one is."""


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    parser = CommandLine(
        prog=PROG,
        description=f"Route leases to several pools. Workers that need a key must have the router's own, {KEY_VARIABLE}.",
    )
    parser.add_argument(
        "--worker",
        action="append",
        required=True,
        type=worker,
        metavar="NAME=URL",
        help="a pool; its name becomes a part of its lease ids, so keep it; repeat the option for more pools",
    )
    add_server_options(parser, PORT)
    return parser


def worker(text: str) -> tuple[str, str]:
    """Parse ``NAME=URL``.

    Raises:
        argparse.ArgumentTypeError: the text is something else.
    """
    name, _, url = text.partition("=")
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if not NAME.fullmatch(name) or parsed.scheme not in ("http", "https") or not parsed.host:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=URL; write for example gpu1=http://10.0.0.1:30200")
    return name, url


def main(argv: Sequence[str] | None = None) -> int:
    """Run the router with the options ``argv``; return the exit status."""
    watch_lifeline()
    options = build_parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        asyncio.run(run(options))
    except ConfigError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return CONFIG_EXIT
    return 0


async def run(options: argparse.Namespace) -> None:
    """Serve until a signal.

    Raises:
        ConfigError: an option is wrong.
    """
    key = read_key(options.host, os.environ)
    if len(names := [name for name, _ in options.worker]) > len(set(names)):
        raise ConfigError(f"--worker: a name is used twice in {', '.join(names)}; give each pool its own")
    listening = listen(options.host, options.port)
    workers = {
        name: HttpLeases(url, key, margin_s=ROUTER_MARGIN_S, unreachable_s=UNREACHABLE_S)
        for name, url in options.worker
    }
    registry = CollectorRegistry()

    async def end() -> None:
        for each in workers.values():
            await each.close()

    try:
        app = create_app(Router(workers, registry), registry, key=key, most_body_bytes=options.max_body_bytes)
        await serve(app, listening, PROG.removeprefix("python -m "), end)
    finally:
        listening.close()


if __name__ == "__main__":
    sys.exit(main())
