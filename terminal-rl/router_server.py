"""``python terminal-rl/router_server.py --workers URL,URL``: one address for the pools of several machines.

The program is `agentrl.router`; a worker's name is its host and port, so the list may grow or be reordered.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from agentrl.router import main as router
from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError
from groundwork.variables import refuse_set

AGAIN = "a call whose connection is cut is sent again until its deadline, and runs once"
OLDER: Mapping[str, str] = {
    "ROUTER_FORWARD_TIMEOUT": "each call carries its own deadline",
    "ROUTER_FORWARD_RETRIES": AGAIN,
    "ROUTER_FORWARD_RETRY_BACKOFF": AGAIN,
}
"""Variables of older routers that are refused, each with what to use instead."""


def words_of(options: argparse.Namespace) -> list[str]:
    """Return the arguments of the router."""
    words = ["--host", options.host, "--port", str(options.port)]
    for url in filter(None, re.split(r"[,\s]+", options.workers)):
        name = re.sub(r"[^A-Za-z0-9]+", "-", urlsplit(url).netloc or url).strip("-")
        words += ["--worker", f"{name}={url}"]
    return words


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    parser = CommandLine(prog="router_server.py", description="Put the pools of several machines behind one address.")
    add = parser.add_argument
    workers = os.environ.get("WORKER_URLS", "")
    add("--workers", default=workers, required=not workers, metavar="URL,URL", help="pools (default: $WORKER_URLS)")
    host = os.environ.get("ROUTER_HOST") or "127.0.0.1"
    add("--host", default=host, help="address to listen on (default: $ROUTER_HOST, or 127.0.0.1)")
    add("--port", default=os.environ.get("ROUTER_PORT", "18080"), help="port (default: $ROUTER_PORT, or 18080)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    options = build_parser().parse_args(argv)
    try:
        refuse_set(OLDER)
    except ConfigError as error:
        print(f"router_server.py: {error}", file=sys.stderr)
        return 2
    return router(words_of(options))


if __name__ == "__main__":
    sys.exit(main())
