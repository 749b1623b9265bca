"""From the command line to a running server, and its errors in one line."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence

from openclaw.exceptions import OpenClawError
from openclaw.server.options import build_parser, read_options
from openclaw.server.run import serve
from slime.exceptions import SlimeError
from slime.utils.process import watch_lifeline

CONFIG_EXIT = 2
INTERRUPTED_EXIT = 130


def main(argv: Sequence[str] | None = None, prog: str = "python -m openclaw.server") -> int:
    """Serve as ``argv`` says; return the exit status."""
    watch_lifeline()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until `serve` listens: ends what was started
    arguments = build_parser(prog).parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return serve(read_options(arguments, os.environ), say)
    except (OpenClawError, SlimeError, OSError) as error:
        print(f"openclaw.server: {error}", file=sys.stderr)
        return CONFIG_EXIT
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT


def say(text: str) -> None:
    """Print a line at once."""
    print(f"openclaw.server: {text}", flush=True)
