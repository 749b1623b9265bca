"""The option ``--owner``: see only what belongs to one key and its children."""

from __future__ import annotations

import argparse

from groundwork.command_line import CommandLine
from openclaw.owners import LOCAL

SHOWN_LOCAL = "local"
"""How a person names the owner of a server without keys."""


def add_owner(parser: CommandLine) -> None:
    """Add the option; its value is None for everybody."""
    parser.add_argument(
        "--owner",
        type=_owner,
        metavar="NAME",
        help=f"only what belongs to this key and its children; {SHOWN_LOCAL}: sessions without a key",
    )


def _owner(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError(f"the owner has no name; use the name of a key, or {SHOWN_LOCAL}")
    return LOCAL if text == SHOWN_LOCAL else text
